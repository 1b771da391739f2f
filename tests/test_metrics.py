"""Metrics: against values computed by hand, against scikit-learn, and in edge cases."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import log_loss, precision_recall_fscore_support, top_k_accuracy_score
from torch import Tensor

from favorit.metrics import accuracy, calibration_error, confusion_matrix, metrics, per_class

KEYS = {"accuracy", "top5", "loss", "calibration_error", "precision", "recall", "f1", "confusion"}


def log_probabilities(probability: list[list[float]]) -> Tensor:
    return torch.tensor(probability, dtype=torch.float64).log()


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits and labels, with classes that never occur or are never predicted."""
    images, classes = draw(st.integers(1, 40)), draw(st.integers(2, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    highest = draw(st.integers(1, classes))
    spread = draw(st.sampled_from([0.1, 1.0, 30.0]))
    return torch.randn(images, classes, generator=generator) * spread, torch.randint(
        highest, (images,), generator=generator
    )


def test_metrics_equal_hand_computed_values():
    logits = log_probabilities([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    found = metrics(logits, torch.tensor([0, 1, 1, 0]))
    assert found["confusion"] == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert found["accuracy"] == 0.5
    assert found["top5"] == 1.0
    assert found["precision"] == [0.5, 0.5, 0.0]
    assert found["recall"] == [0.5, 0.5, 0.0]
    assert found["f1"] == [0.5, 0.5, 0.0]
    assert found["loss"] == pytest.approx(
        -(math.log(0.5) + math.log(0.8) + math.log(0.3) + math.log(0.2)) / 4, rel=1e-12
    )
    # Four bins of one image each: |1 - .5|, |1 - .8|, |0 - .6|, |0 - .7|.
    assert found["calibration_error"] == pytest.approx((0.5 + 0.2 + 0.6 + 0.7) / 4, rel=1e-12)


@settings(max_examples=60)
@given(predictions())
def test_metrics_equal_scikit_learn(case):
    logits, labels = case
    classes, predicted = list(range(logits.shape[1])), logits.argmax(-1)
    found = metrics(logits, labels)
    np.testing.assert_array_equal(found["confusion"], sklearn_confusion(labels, predicted, labels=classes))
    precision, recall, f1, _ = precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=0.0)
    np.testing.assert_allclose(found["precision"], precision, rtol=1e-12)
    np.testing.assert_allclose(found["recall"], recall, rtol=1e-12)
    np.testing.assert_allclose(found["f1"], f1, rtol=1e-12)
    probability = logits.double().softmax(-1).clamp(min=1e-300).numpy()
    assert found["loss"] == pytest.approx(-np.log(probability[np.arange(len(labels)), labels]).mean(), rel=1e-9)
    if (logits.double().softmax(-1) > 1e-15).all():  # scikit-learn clips probabilities there
        assert found["loss"] == pytest.approx(log_loss(labels, probability, labels=classes), rel=1e-9)
    if logits.shape[1] > 5:
        top5 = top_k_accuracy_score(labels, logits.double().numpy(), k=5, labels=classes)
        assert found["top5"] == pytest.approx(top5, rel=1e-12)


@settings(max_examples=60)
@given(predictions())
def test_metrics_have_valid_shapes_ranges_and_json(case):
    logits, labels = case
    images, classes = logits.shape
    found = metrics(logits, labels)
    assert found.keys() == KEYS
    assert json.loads(json.dumps(found)) == found
    assert np.array(found["confusion"]).shape == (classes, classes)
    assert sum(map(sum, found["confusion"])) == images
    assert [sum(row) for row in found["confusion"]] == torch.bincount(labels, minlength=classes).tolist()
    assert all(len(found[key]) == classes for key in ("precision", "recall", "f1"))
    assert all(0 <= value <= 1 for key in ("precision", "recall", "f1") for value in found[key])
    assert 0 <= found["accuracy"] <= found["top5"] <= 1
    assert 0 <= found["calibration_error"] <= 1
    assert found["top5"] == 1 or classes > 5


def test_top_k_accuracy_counts_labels_among_the_k_largest_logits():
    logits = torch.arange(8.0).repeat(8, 1)
    labels = torch.arange(8)
    assert [accuracy(logits, labels, k) for k in (1, 2, 5, 8, 9)] == [1 / 8, 2 / 8, 5 / 8, 1.0, 1.0]


def test_confusion_matrix_has_labels_in_rows_and_predictions_in_columns():
    found = confusion_matrix(predicted=torch.tensor([2, 2, 0]), labels=torch.tensor([1, 1, 0]), classes=3)
    assert found.tolist() == [[1, 0, 0], [0, 0, 2], [0, 0, 0]]
    assert per_class(found) == {"precision": [1.0, 0.0, 0.0], "recall": [1.0, 0.0, 0.0], "f1": [1.0, 0.0, 0.0]}


def test_calibration_error_of_a_calibrated_model_is_zero():
    """In each of several bins, the model has confidence p and accuracy p."""
    logits, labels = [], []
    for p in (0.55, 0.65, 0.75, 0.95):
        logits += [[p, 1 - p]] * 100
        labels += [0] * round(100 * p) + [1] * round(100 * (1 - p))
    assert calibration_error(log_probabilities(logits), torch.tensor(labels)) == pytest.approx(0, abs=1e-12)


def test_calibration_error_is_one_if_always_certain_and_wrong():
    logits = torch.tensor([[1000.0, 0.0]] * 10)
    assert calibration_error(logits, torch.ones(10, dtype=torch.int64)) == 1.0
    assert calibration_error(logits, torch.zeros(10, dtype=torch.int64)) == 0.0


def test_calibration_error_of_constant_overconfidence_is_independent_of_bins():
    """Confidence 0.9 and accuracy 0.5: the gap is 0.4 for any number of bins."""
    logits, labels = log_probabilities([[0.9, 0.1]] * 20), torch.tensor([0, 1] * 10)
    for bins in (1, 5, 15, 100):
        assert calibration_error(logits, labels, bins) == pytest.approx(0.4, rel=1e-12)


def test_calibration_errors_of_opposite_sign_cancel_within_a_bin_only():
    """Confidence 0.6 always right, 0.9 always wrong: one bin gives |0.5 - 0.75|, fifteen give (0.4 + 0.9) / 2."""
    logits, labels = log_probabilities([[0.6, 0.4]] * 5 + [[0.9, 0.1]] * 5), torch.tensor([0] * 5 + [1] * 5)
    assert calibration_error(logits, labels, bins=1) == pytest.approx(0.25, rel=1e-12)
    assert calibration_error(logits, labels) == pytest.approx(0.65, rel=1e-12)


def test_all_metrics_break_ties_by_class_order():
    """Logits in bf16 often tie. Accuracy, top 5, the confusion matrix and `compare` agree on the correct images."""
    logits = torch.randn(500, 7, generator=torch.Generator().manual_seed(0)).mul(2).round()
    labels = torch.randint(7, (500,), generator=torch.Generator().manual_seed(1))
    found = metrics(logits, labels)
    right = logits.argmax(-1) == labels
    assert (logits.topk(2).values.diff() == 0).float().mean() > 0.2, "many ties"
    assert found["accuracy"] == right.double().mean().item() == (logits.numpy().argmax(-1) == labels.numpy()).mean()
    assert found["accuracy"] == pytest.approx(sum(found["confusion"][c][c] for c in range(7)) / 500)
    order = torch.argsort(logits, dim=-1, descending=True, stable=True)
    assert found["top5"] == (order[:, :5] == labels[:, None]).any(-1).double().mean().item()
