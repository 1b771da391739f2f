"""Mistakes in Python raise FavoritError with one line that repeats the wrong value and names the fix.

To add a mistake, add a line to MISTAKES: its code, and parts of the message. The code can use NAMES, and the names of
the fixture `names`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import favorit
from favorit import FavoritError, study
from favorit.attention import Kernel
from favorit.attention.kernels.pointwise import pointwise
from favorit.attention.kernels.registry import kernel
from favorit.process import SPINNING
from favorit.study import Options, Points, Scale, Study, product, zipped

X = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
Y = np.arange(60) % 3
TINY: dict[str, Any] = dict(
    model=dict(stem="patch(4)", dim=8, heads=2, depth=1, mlp_dim=8), train=dict(epochs=1, batch_size=16)
)
RATE = {"train.lr": "log(1e-4, 1e-2)"}


class Random(Dataset):
    """A data set with a random transform."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(1, 8, 8), index % 3


class NoKeys(Kernel):
    def queries(self, q: torch.Tensor) -> torch.Tensor:
        return q


class NoFeatures(NoKeys):
    def keys(self, k: torch.Tensor) -> tuple[torch.Tensor, None]:
        return k, None


NAMES: dict[str, Any] = {
    **dict(
        np=np,
        torch=torch,
        favorit=favorit,
        study=study,
        Image=Image,
        kernel=kernel,
        pointwise=pointwise,
        product=product,
    ),
    **dict(zipped=zipped, Options=Options, Points=Points, Scale=Scale, Study=Study, DataLoader=DataLoader),
    **dict(X=X, Y=Y, TINY=TINY, RATE=RATE, Random=Random, NoKeys=NoKeys, NoFeatures=NoFeatures),
}

MISTAKES = [
    # train: the configuration
    ("favorit.train('digits')", "must be a RunConfig or a dictionary, such as {'data': {'name'", "not 'digits'"),
    ("favorit.train(None)", "must be a RunConfig or a dictionary", "not None"),
    ("favorit.train(['digits'])", "must be a RunConfig or a dictionary", "not a list"),
    ("favorit.train(model)", "must be a RunConfig or a dictionary", "not a ViT"),
    ("favorit.train({'modle': {}})", "'modle'", "did you mean 'model'?"),
    ("favorit.train({1: {}})", "unknown field of RunConfig '1'", "known: data, model"),
    ("favorit.train({'model': 'vit'})", "model='vit' is not valid"),
    ("favorit.train({'model': {1: 2}})", "model={1: 2}", "must be text"),
    ("favorit.train({'model': {'dmi': 64}})", "'dmi'", "did you mean 'dim'?"),
    ("favorit.train({'model': {'dim': '64'}})", "dim='64'", "integer"),
    ("favorit.train({'model': {'dim': 65}})", "heads=4 does not divide dim=65", "or give head_dim"),
    ("favorit.train({'model': {'depth': 0}})", "depth=0", "1"),
    ("favorit.train({'model': {'layout': 'relu|sofmax'}})", "'sofmax'", "did you mean 'softmax'?"),
    ("favorit.train({'model': {'layout': ['relu']}})", "layout=['relu']"),
    ("favorit.train({'model': {'stem': 'patch(3)'}})", "(3, 3) does not divide the image (8, 8)", "choose a divisor"),
    ("favorit.train({'train': {'lr': 'fast'}})", "lr='fast'", "number"),
    ("favorit.train({'train': {'epochs': True}})", "epochs=True", "integer"),
    ("favorit.train({'train': {'optimizer': 'adamm'}})", "'adamm'", "did you mean 'adam'?"),
    ("favorit.train({'train': {'precision': '16'}})", "precision='16'", "'32', 'bf16' or 'fp16'"),
    ("favorit.train({'data': {'name': 'cifar'}})", "'cifar'", "did you mean 'cifar10'?"),
    ("favorit.train({'data': {'name': 'folder:/nowhere'}})", "folder:/nowhere: folder not found"),
    ("favorit.train({'data': {'augment': 'flop'}})", "'flop'", "did you mean 'flip'?"),
    ("favorit.train({'data': {'validation': 2.0}})", "validation=2.0", "for a count write 2"),
    ("favorit.train({'seed': -1})", "seed=-1", "0"),
    # train: the other arguments
    ("favorit.train(TINY, out=3)", "out must be a path, not int"),
    ("favorit.train(TINY, out='file.txt')", "file.txt is a file: give a folder"),
    ("favorit.train(TINY, devices='2')", "devices='2'", "an integer of at least 1"),
    ("favorit.train(TINY, accelerator='gpuu')", "unknown accelerator 'gpuu'", "did you mean 'gpu'?"),
    ("favorit.train(TINY, listen=3)", "listen=3", "a function of an event"),
    ("favorit.train(TINY, checkpoint_seconds='a')", "checkpoint_seconds='a'", "a number of seconds"),
    ("favorit.train({'data': {'name': 'mnist'}}, data_dir=5)", "data_dir must be a path, not int"),
    # train: arrays
    ("favorit.train(TINY, data=X)", "must be (images, labels) or a torch Dataset", "not ndarray"),
    ("favorit.train(TINY, data='digits')", "must be (images, labels) or a torch Dataset", "not str"),
    ("favorit.train(TINY, data=(X, Y[:3]))", "60 images and 3 labels", "give one label for each"),
    ("favorit.train(TINY, data=(X.astype(float), Y))", "floats from 0 to 255", "divide them by 255"),
    ("favorit.train(TINY, data=(X / 255 - 0.5, Y))", "floats from -0.5 to 0.5", "leave normalization to favorit"),
    ("favorit.train(TINY, data=(X.astype(int), Y))", "not torch.int64", "convert 0..255 to uint8"),
    ("favorit.train(TINY, data=(X[0], Y))", "(N, H, W), (N, H, W, C) or (N, C, H, W), not (8, 8)"),
    ("favorit.train(TINY, data=(X, Y.astype(float)))", "torch.float64 (60,)", "convert them to integers"),
    ("favorit.train(TINY, data=(X, np.eye(3)[Y]))", "(60, 3)", "give labels.argmax(1)"),
    ("favorit.train(TINY, data=(X, ['cat'] * 60))", "must hold numbers", "convert names to 0, 1, 2"),
    ("favorit.train(TINY, data=(X, Y + 1))", "label 0", "labels count from 0"),
    ("favorit.train(TINY, data=(X, Y - 1))", "start at -1", "labels count from 0"),
    ("favorit.train(TINY, data=(X, 0 * Y))", "only one class", "at least two"),
    ("favorit.train(TINY, data=(X[:4], Y[:4]))", "4 images of 3 classes", "give test=(images, labels)"),
    ("favorit.train(TINY, data=Random())", "changes when it is read again", "data.augment"),
    ("favorit.train(TINY, data=DataLoader(Random()))", "are a DataLoader", "loader.dataset"),
    ("favorit.train({'data': {'name': 'mnist'}}, data=(X, Y))", "data.name='mnist'", "give only one of them"),
    ("favorit.train({'data': {'name': 'arrays'}})", "'arrays' exists only in the Python script", "data=(images,"),
    ("favorit.build_dataset(X, Y, classes=['a', 'b'])", "image 2 has the label 2", "with 2 classes"),
    ("favorit.build_dataset(X, Y, classes='abc')", "classes='abc'", "one for each label"),
    ("favorit.build_dataset(X, Y, test=(X[:, :4], Y))", "(1, 4, 8)", "give images of one shape"),
    ("favorit.build_dataset(X, Y, test=X)", "the test data must be (images, labels)"),
    ("favorit.build_dataset(np.zeros((5, 9, 9, 9), np.uint8), Y[:5])", "(5, 9, 9, 9)", "1 to 4 channels"),
    ("favorit.build_dataset([X[0], X[1][:4]], [0, 1])", "different shapes", "resize them to one size"),
    ("favorit.build_dataset(X[:0], Y[:0])", "there are no training images", "(0, 8, 8)"),
    ("favorit.build_dataset(np.where(X > 9, np.nan, 0.5), Y)", "values are NaN", "replace them"),
    ("favorit.train(TINY, data=(X, Y), name=3)", "name=3", "printable text of 1 to 1000 characters, or None"),
    ("favorit.train(TINY, data=(X, Y), name='')", "name=''", "printable text"),
    ("favorit.train(TINY, data=(X, Y), name='two\\nlines')", "name='two\\nlines'", "printable text"),
    ("favorit.train(TINY, data=(X, Y), study='x' * 1001)", "study='xxx", "1 to 1000 characters"),
    ("favorit.train(TINY, data={'images': X})", "(images, labels) or a torch Dataset", "not dict"),
    ("favorit.train(TINY, data=(X.tolist(), Y))", "must be an array or a tensor, not list"),
    ("favorit.train({**TINY, 'train': {'lr': '1e-3'}}, data=(X, Y))", "lr='1e-3'", "a number"),
    ("favorit.build_dataset(X, Y, classes=['a', 'a', 'b'])", "['a', 'a', 'b']", "different names"),
    ("favorit.build_dataset(X, Y, validation=0.2)", "validation data must be (images, labels)", "not float"),
    # create_model and the model
    ("favorit.create_model('vit-65')", "'vit-65'", "did you mean 'vit-64'?"),
    ("favorit.create_model({'dim': 64})", "the name of a preset or a ModelConfig, not dict"),
    ("favorit.create_model('vit-64', dmi=3)", "'dmi'", "did you mean 'dim'?"),
    ("favorit.create_model('vit-64', seed='a')", "seed='a'", "an integer of at least 0"),
    ("favorit.create_model('vit-64', image_size='32')", "image_size='32'", "a number of pixels, or (rows, columns)"),
    ("favorit.create_model('vit-64', layout='relu(causal=True)')", "prefix=1 (head=cls)", "use head=mean or seqpool"),
    ("favorit.ModelConfig(64)", "takes its fields by name, such as ModelConfig(image_size=...)", "not 64"),
    ("favorit.ViT('vit-64', 0)", "needs a ModelConfig, not 'vit-64'", "create_model"),
    ("model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))", "torch.uint8", "favorit.load(run).predict"),
    ("model(torch.zeros(2, 3, 32, 32, dtype=torch.float64))", "torch.float64", "images.to(torch.float32)"),
    ("model(torch.zeros(2, 1, 32, 32))", "(B, 3, H, W), not torch.float32 (2, 1, 32, 32)"),
    ("model(torch.zeros(2, 32, 32, 3))", "(B, 3, H, W), not torch.float32 (2, 32, 32, 3)"),
    ("model(torch.zeros(3, 32, 32))", "(B, 3, H, W), not torch.float32 (3, 32, 32)"),
    ("model(torch.zeros(2, 3, 30, 30))", "does not divide the image (30, 30)", "resize the data"),
    ("model(np.zeros((2, 3, 32, 32)))", "not ndarray", "favorit.load(run).predict"),
    ("model('cat.png')", "not str", "favorit.load(run).predict"),
    # Attention
    ("favorit.Attention(16, 3)", "heads=3 does not divide dim=16", "or give head_dim"),
    ("favorit.Attention('16', 2)", "dim='16'", "an integer of at least 1"),
    ("favorit.Attention(16, 2, 'rely')", "'rely'", "did you mean 'relu'?"),
    ("favorit.Attention(16, 2, None)", "a spec is text such as 'relu(m=64)', not None"),
    ("favorit.Attention(16, 2, position='rope')", "'rope'", "did you mean 'rope2d'?"),
    ("favorit.Attention(16, 2, 'linformer(k=4)')", "tokens=None", "grid=(rows, columns) to Attention"),
    ("favorit.Attention(16, 2, 'softmax', grid=3)", "grid=3", "such as (14, 14)"),
    ("favorit.Attention(16, 2, favorit.build_mixer('relu', heads=4, head_dim=4))", "4 heads of width 4", "2 of"),
    ("layer(torch.zeros(5, 16))", "(B, N, 16), not torch.float32 (5, 16)"),
    ("layer(torch.zeros(1, 5, 17))", "(B, N, 16), not torch.float32 (1, 5, 17)"),
    ("layer(torch.zeros(1, 5, 16, dtype=torch.int64))", "floating-point", "not torch.int64"),
    ("layer(torch.zeros(1, 5, 16, dtype=torch.bfloat16))", "x is torch.bfloat16", "x.to(torch.float32)"),
    ("layer(np.zeros((1, 5, 16)))", "tensor of shape (B, N, 16), not ndarray"),
    ("layer(torch.zeros(1, 5, 16), grid=(2, 2))", "got 5 tokens", "grid=(2, 2) make 4 tokens"),
    ("layer(torch.zeros(1, 5, 16), grid=4)", "grid=4", "such as (14, 14)"),
    ("layer(torch.zeros(1, 5, 16), prefix='1')", "prefix='1'", "0 or more"),
    ("layer(torch.zeros(1, 5, 16), prefix=6)", "got 5 tokens, fewer than prefix=6"),
    ("layer(torch.zeros(1, 5, 16), key_mask=torch.ones(1, 5))", "bool tensor of shape (1, 5)", "for the keys to keep"),
    ("layer(torch.zeros(1, 5, 16), key_mask=[True] * 5)", "bool tensor of shape (1, 5), not list"),
    ("layer(*[torch.zeros(1, 5, 16)] * 3)", "the second argument is a tensor", "give only x"),
    ("layer(torch.zeros(1, 5, 16), prefix=torch.zeros(3, 3))", "prefix=tensor([[0., 0., 0.],", "0 or more"),
    ("layer(torch.zeros(1, 5, 16), grid=np.zeros((3, 3)))", "grid=array([[0., 0., 0.],", "such as (14, 14)"),
    ("layer(torch.zeros(1, 5, 16), num_queries='2')", "num_queries='2'", "0 or more"),
    ("layer(torch.zeros(1, 5, 16), num_queries=-1)", "num_queries=-1", "0 or more"),
    ("favorit.Attention(16, 2, local='conv(3)')", "'conv'", "did you mean 'dwconv'?"),
    ("favorit.Attention(16, 2, position='rope2d', head_dim=6)", "head_dim=6", "divisible by 4"),
    ("favorit.ModelConfig(head_dim='8')", "head_dim='8'", "an integer or None"),
    ("favorit.create_model('vit-64', num_classes=3)", "'num_classes'", "did you mean 'classes'?"),
    ("model.resized((47, 47))", "(47, 47)", "choose a divisor"),
    ("model.resized('big')", "image_size='big'", "a number of pixels"),
    # build_mixer and mixers
    ("favorit.build_mixer('relu(m=8', heads=2, head_dim=8)", "'relu(m=8'", "write name or name(key=value"),
    ("favorit.build_mixer('relu(m=8.5)', heads=2, head_dim=8)", "m=8.5", "integer"),
    ("favorit.build_mixer('relu(n=8)', heads=2, head_dim=8)", "'n'", "known: bias, causal"),
    ("favorit.build_mixer(torch.relu, heads=2, head_dim=8)", "a spec is text such as 'relu(m=64)'"),
    ("favorit.build_mixer('relu', heads=2, head_dim='8')", "head_dim='8'", "an integer of at least 1"),
    ("mixer(q[0], q[0], q[0])", "(B, 2, Nq, 8), not torch.float32 (2, 5, 8)"),
    ("mixer(q[..., :4], q[..., :4], q[..., :4])", "(B, 2, Nq, 8), not torch.float32 (1, 2, 5, 4)"),
    ("mixer(q, q[:, :1], q[:, :1])", "k must be", "(1, 2, Nk, 8), not torch.float32 (1, 1, 5, 8)"),
    ("mixer(q, q, q[:, :, :3])", "v must be", "(1, 2, 5, Dv), not torch.float32 (1, 2, 3, 8)"),
    ("mixer(q, q, None)", "v must be", "not NoneType"),
    ("mixer(q.int(), q, q)", "q must be a floating-point tensor", "torch.int32"),
    ("mixer(q, q, q, key_mask=torch.ones(5, dtype=torch.bool))", "(1, 5), not torch.bool (5,)"),
    # load, predict, evaluate, runs, doctor, compare, pack
    ("favorit.load('nowhere')", "nowhere is not a run"),
    ("favorit.load(3)", "run must be a path, not int"),
    ("favorit.load(model)", "run must be a path, not ViT"),
    ("favorit.load('file.txt')", "file.txt is not a run"),
    ("favorit.Run(None)", "run must be a path, not NoneType"),
    ("favorit.Run('nowhere').result", "nowhere is not a run"),
    ("favorit.load(run).predict('nowhere.png')", "nowhere.png: file not found"),
    ("favorit.load(run).predict('file.txt')", "file.txt: cannot be read as an image"),
    ("favorit.load(run).predict('empty')", "empty: no images in this folder", ".png"),
    ("favorit.load(run).predict(None)", "an array or a tensor, not NoneType"),
    ("favorit.load(run).predict(X.astype(float))", "floats from 0 to 255", "divide them by 255"),
    ("favorit.load(run).predict(X[:, :4])", "(60, 4, 8)", "trained on (1, 8, 8)", "give files or PIL images"),
    ("favorit.load(run).predict(Image.new('L', (0, 3)))", "0 x 3 pixels", "give one with pixels"),
    ("favorit.load(run).predict(b'bytes')", "an array or a tensor, not bytes"),
    ("favorit.load(run).predict(X, top=-1)", "top=-1", "at least 1"),
    ("favorit.compare(run, run)", "is given twice", "with itself"),
    ("favorit.runs(run.path)", "is a run, not a folder of runs", "give the folder that it is in"),
    ("favorit.load(run).predict(X, top='all')", "top='all'", "an integer of at least 1"),
    ("favorit.load(run).probabilities('cat.png')", "an array or a tensor, not str"),
    ("favorit.predict(X, run)", "run must be a path, not ndarray"),
    ("favorit.evaluate(run)", "trained on arrays of a Python script", "data=(images, labels)"),
    ("favorit.evaluate(run, data=(X[:30], Y[:30]))", "not the data set", "was trained on"),
    ("favorit.evaluate('nowhere')", "nowhere is not a run"),
    ("favorit.runs(3)", "folder must be a path, not int"),
    ("favorit.runs('file.txt')", "file.txt is a file, not a folder of runs"),
    ("favorit.doctor(run, data=(X, Y), images=0)", "images=0", "an integer of at least 1"),
    ("favorit.doctor(run, data=(X, Y), counts=64)", "counts=64", "such as [64, 128]"),
    ("favorit.compare(run, 'nowhere')", "nowhere is not a run"),
    ("favorit.compare(run, model)", "run must be a path, not ViT"),
    ("favorit.compare([], [run])", "at least one run"),
    ("favorit.pack(run, 3)", "the folder for packed runs must be a path, not int"),
    ("favorit.list_components('mixer')", "'mixer'", "did you mean 'mixers'?"),
    ("favorit.list_components(3)", "unknown kind of component 3", "mixers"),
    ("favorit.share_cores()", "no effect after torch is imported", "call it first"),
    # studies
    ("study.run('hybrid')", "'hybrid'", "did you mean 'hybrids'?"),
    ("study.run(product({'seed': [0]}))", "a name or the path of a .py file, not Points"),
    ("study.run('study.py')", "study.py must hold STUDY = Study("),
    ("study.run('broken.py')", "broken.py, line 1", "was never closed"),
    ("study.run('missing.py')", "missing.py", "no such file"),
    ("study.run('quickstart', workers='2')", "workers='2'", "an integer of at least 1"),
    ("study.run('quickstart', out=3)", "out must be a path, not int"),
    ("study.run('quickstart', hours='8')", "hours='8'", "a number of at least 0"),
    ("study.run('quickstart', options='smoke')", "options='smoke'", "Options(scale='small')"),
    ("study.run('quickstart', options=Options(scale='tiny'))", "'tiny'", "known: published, smoke"),
    ("study.run('quickstart', options=Options(only='gelu'))", "no point matches 'gelu'", "named like"),
    ("Options(protocol='sounds')", "'sounds'", "did you mean 'sound'?"),
    ("Options(seeds=3)", "seeds=3", "such as (0, 1, 2)"),
    ("Options(epochs='3')", "epochs='3'", "an integer of at least 1"),
    ("Options(only=3)", "only=3", "a part of a point's name"),
    ("Scale(3)", "changes=3", "a dictionary such as {'train.epochs': 2}"),
    ("Study('a b', '?', {}, product(seed=[0]))", "'a b'", "use letters, digits"),
    ("Study('a', '?', {}, [])", "points must be Points", "not list"),
    ("Study('a', '?', None, product(seed=[0]))", "base must be a dictionary, not NoneType"),
    ("Study('a', '?', {'model.dmi': 3}, product(seed=[0]))", "'model.dmi'", "did you mean 'model.dim'?"),
    ("Study('a', '?', {}, product(seed=[0]), scales={'small': {}})", "'small' must be a Scale", "Scale({"),
    ("Study('a', '?', {}, product(seed=['x'])).configs()", "point 'a': seed='x'", "integer"),
    ("product({'model.dim': 64})", "model.dim=64", "such as [64]"),
    ("product(['model.dim'])", "give a dictionary of fields", "not ['model.dim']"),
    ("product({'model.dmi': [1]})", "'model.dmi'", "did you mean 'model.dim'?"),
    ("zipped({'seed': [0, 1], 'model.dim': [64]})", "seed has 2, model.dim has 1"),
    ("Points('model.dim')", "a point is a dictionary such as {'model.dim': 64}", "not 'model.dim'"),
    ("product(seed=[0]) + {'seed': 1}", "the right side must be Points"),
    ("product(seed=[0]) * product(seed=[1])", "seed is on both sides of *"),
    ("product(seed=[0]).where('seed')", "a function of a point", "not 'seed'"),
    ("product(seed=[0]).where(lambda point: point['model.dim'] > 3)", "no field 'model.dim'", "point.get("),
    # tune
    ("favorit.tune('kernel')", "'kernel'", "did you mean"),
    ("favorit.tune(3)", "a name, a YAML file or a dictionary", "not 3"),
    ("favorit.tune({})", "is empty", "train.lr: log(1e-4, 3e-3)"),
    ("favorit.tune({'model.dmi': 'choice(1)'})", "'model.dmi'", "did you mean 'model.dim'?"),
    ("favorit.tune({'model.dim': 'choise(1)'})", "'choise'", "did you mean 'choice'?"),
    ("favorit.tune({'model.dim': [64, 128]})", "model.dim", "text", "not [64, 128]"),
    ("favorit.tune('missing.yaml')", "missing.yaml", "no such file"),
    ("favorit.tune(RATE, 'digits')", "must be a RunConfig or a dictionary", "not 'digits'"),
    ("favorit.tune(RATE, TINY, trials=0)", "trials=0", "an integer of at least 1"),
    ("favorit.tune(RATE, TINY, sampler='bayes')", "'bayes'", "known: grid, random, tpe"),
    ("favorit.tune(RATE, TINY, objectives=['speed'])", "'speed'", "known: accuracy, latency"),
    ("favorit.tune(RATE, TINY, name=3)", "name=3", "text, or None"),
    ("favorit.tune(RATE, {'data': {'name': 'arrays'}})", "'arrays' exists only in the Python script"),
    # registering a kernel
    ("kernel(NoFeatures)", "write @kernel('my_kernel')"),
    ("kernel('my-kernel')(NoFeatures)", "'my-kernel'", "letters, digits and underscores"),
    ("kernel('relu')(NoFeatures)", "'relu' is registered twice"),
    ("kernel('mine')(torch.nn.Linear)", "must be a subclass of Kernel", "Linear"),
    ("kernel('mine')(NoKeys)", "has no keys", "define keys(self, x)"),
    ("kernel('mine')(NoFeatures) and favorit.build_mixer('mine', heads=1, head_dim=2)", "'mine'", "set self.features"),
    ("pointwise(torch.relu)", "a function whose first parameter is x"),
    ("pointwise(lambda t: t)", "a function whose first parameter is x"),
]  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("mistakes")
    run = favorit.train(TINY, data=(X, Y), out=place / "runs", progress=False)
    return {
        **NAMES,
        "run": run,
        "model": favorit.create_model("vit-64", depth=1),
        "layer": favorit.Attention(16, 2, "relu(m=8)"),
        "mixer": favorit.build_mixer("relu(m=8)", heads=2, head_dim=8),
        "q": torch.zeros(1, 2, 5, 8),
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "file.txt").write_text("text")
    (tmp_path / "study.py").write_text("X = 1\n")
    (tmp_path / "broken.py").write_text("STUDY = (\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    for setting in SPINNING:  # other tests may set them in this process
        monkeypatch.delenv(setting, raising=False)
    # Kernels that a mistake registers are known to its test only.
    for registry in (favorit.attention.KERNELS, favorit.attention.MIXERS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    return tmp_path


@pytest.mark.parametrize(("code", "parts"), [(code, parts) for code, *parts in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistake_raises_one_line_that_names_the_fix(
    code: str, parts: list[str], names: dict[str, Any], place: Path
) -> None:
    with pytest.raises(FavoritError) as caught:
        eval(code, names)
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in parts if part not in message] == [], message
    assert not any(place.rglob("runs/*/config.json")), "a mistake leaves no run"
