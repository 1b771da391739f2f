"""Mistakes on the command line: each is one line that repeats the wrong value and names the fix. Nothing is trained.

Add a row to `MISTAKES` for another mistake: the command line, the text that the message repeats, the part of the
message that names the fix, and the exit status if it is not 2. Names of the files in `workspace` can be used.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from training_helpers import files, fit, tiny

RUN = "runs/RUN"  # a complete run
STUDY = "from favorit.study import *\nSTUDY = Study('mine', '?', {'data.name': 'digits'}, Points(%s))\n"
FILES = {
    "text.txt": "not an image",
    "broken.png": "not an image",
    "broken.yaml": "model: [unclosed",
    "list.yaml": "- 1\n",
    "field.yaml": "train: {epoch: 3}\n",
    "section.yaml": "modle: {dim: 8}\n",
    "preset.yaml": "model: {preset: vti-64}\n",
    "fails.py": "import nothing_of_that_name\n",
    "empty.py": "\n",
    "misspelled.py": STUDY % "{'model.dims': 8}",
    "equal.py": STUDY % "{'seed': 0}, {'seed': 0}",
    "unbuildable.py": STUDY % "{'model.stem': 'patch(3)'}",
    "space.yaml": "train.lrr: log(1e-4, 1e-2)\n",
    "bounds.yaml": "train.lr: log(1, 0.1)\n",
    "words.yaml": "train.lr: fast\n",
}

# (command line, repeated text, fix) or (command line, repeated text, fix, exit status)
MISTAKES: list[tuple[str, str, str] | tuple[str, str, str, int]] = [
    # commands and options
    ("trian", "'trian'", "Did you mean 'train'"),
    ("study lst", "'lst'", "Did you mean 'list'"),
    ("bench spee", "'spee'", "'speed'"),
    ("--vesion", "--vesion", "--version"),
    ("train --epoch 3", "--epoch", "(Possible options: --epochs) (see favorit train --help)"),
    ("train cifar10", "(cifar10)", "see favorit train --help"),
    ("train --epochs", "--epochs", "requires an argument (see favorit train --help)"),
    ("train --compile=yes", "--compile", "does not take a value (see favorit train --help)"),
    ("runs pack runs", "--to", "is missing (see favorit runs pack --help)"),
    # train: options
    ("train --epochs x", "--epochs x", "an integer (see favorit train --help)"),
    ("train --epochs 1.5", "--epochs 1.5", "an integer"),
    ("train --epochs 0", "epochs=0", "at least 1"),
    ("train --seed -1", "seed=-1", "at least 0"),
    ("train --folds 1", "--folds 1", "at least 2"),
    ("train --folds x", "--folds x", "an integer"),
    ("train --devices 0", "--devices 0", "at least 1"),
    ("train --accelerator gpu9", "'gpu9'", "did you mean 'gpu'"),
    ("train --accelerator nope", "'nope'", "auto, cpu, cuda"),
    ("train --preset vit64", "'vit64'", "did you mean 'vit-64'"),
    ("train --preset ''", "''", "known: "),
    ("train --data cifar1", "'cifar1'", "did you mean 'cifar10'"),
    ("train --data folder:", "folder:", "write folder:PATH"),
    ("train --data folder:nowhere", "folder:nowhere", "not found"),
    ("train --data runs", "'runs'", "to train on its images, write folder:runs"),
    ("train --data ./runs", "'./runs'", "write folder:./runs"),
    ("train --data digits,mnist", "'digits,mnist'", "write name or name(key=value, ...)"),
    ("train --data folder:flat", "flat: 1 image, but in no class folder", "at least two class folders"),
    ("train --data folder:text.txt", "folder:text.txt", "folder not found"),
    ("train --data 'synthetic(size=8'", "'synthetic(size=8'", "write name or name(key=value, ...)"),
    ("train --data 'synthetic(size=0)'", "size=0", "at least 1"),
    ("train --data 'synthetic(sizes=8)'", "'sizes'", "did you mean 'size'"),
    ("train --out text.txt", "--out text.txt", "give a folder"),
    ("train --out text.txt/runs", "--out text.txt/runs", "text.txt is a file"),
    ("train --out /proc/runs", "--out /proc/runs", "choose another place"),
    ("train --config nowhere.yaml", "nowhere.yaml", "no such file"),
    ("train --config runs", "runs is not a run", "`favorit runs` lists runs"),
    ("train --config broken.yaml", "broken.yaml", "is not YAML: line 1, column 17"),
    ("train --config list.yaml", "list.yaml", "sections among model, data, train"),
    ("train --config field.yaml", "'epoch'", "did you mean 'epochs'"),
    ("train --config section.yaml", "'modle'", "did you mean 'model'"),
    ("train --config preset.yaml", "'vti-64'", "did you mean 'vit-64'"),
    # train: fields
    ("train --set lr=0.1", "'lr=0.1'", "write --set section.key=value"),
    ("train --set train.lr", "'train.lr'", "write --set section.key=value"),
    ("train --set tran.lr=1", "'tran'", "did you mean 'train'"),
    ("train --set train.epoch=1", "'epoch'", "did you mean 'epochs'"),
    ("train --set train.lr=fast", "lr='fast'", "a number"),
    ("train --set train.lr=-1", "lr=-1", "above 0"),
    ("train --set train.lr=nan", "lr='nan'", "a number"),
    ("train --set train.batch_size=0", "batch_size=0", "at least 1"),
    ("train --set train.precision=16", "precision=16", "'32', 'bf16' or 'fp16'"),
    ("train --accelerator cpu --set train.precision=fp16", "fp16", "use 32 or bf16"),
    ("train --set train.clip=none", "clip='none'", "a number or None"),
    ("train --set train.patience=0", "patience=0", "at least 1 or None"),
    ("train --set train.watch=val", "watch='val'", "'test' or None"),
    ("train --set train.label_smoothing=1", "label_smoothing=1", "below 1"),
    ("train --set train.class_weights=(1,-1)", "class_weights=(1, -1)", "none negative"),
    ("train --set train.lr=0,1", "lr=(0, 1)", "a number"),
    ("train --set train.schedule=none", "'none'", "constant"),
    ("train --set train.optimizer=adamw(lr=3)", "'lr'", "known: beta1, beta2"),
    ("train --set train.select=first", "select='first'", "'best' or 'last'"),
    ("train --set train.monitor=auc", "monitor='auc'", "'accuracy' or 'loss'"),
    ("train --set train.optimizer=adma", "'adma'", "did you mean 'adam'"),
    ("train --set 'train.optimizer=adam(beta3=1)'", "'beta3'", "did you mean 'beta2'"),
    ("train --set train.schedule=cosin", "'cosin'", "did you mean 'cosine'"),
    ("train --set train.class_weights=3", "class_weights=3", "one weight for each class"),
    ("train --set 'train.class_weights=(1, 2)'", "2 weights", "one for each class"),
    ("train --set train.redraw=often", "redraw='often'", "an integer or 'never' or 'epoch'"),
    ("train --set model.layout=sofmax", "'sofmax'", "did you mean 'softmax'"),
    ("train --set 'model.layout=relu|softmax|relu'", "'relu|softmax|relu'", "must be a multiple of this"),
    ("train --set 'model.layout=favor(k=3)'", "'k'", "known: causal, features, kernel, m"),
    ("train --set 'model.layout=favor(m=-3)'", "m=-3", "at least 1"),
    ("train --set 'model.layout=favor(m=some)'", "m=some", "an integer"),
    ("train --set 'model.layout=relu('", "'relu('", "write name or name(key=value, ...)"),
    ("train --set 'model.layout=relu(causal=True)'", "causal", "use head=mean or seqpool"),
    ("train --set 'model.layout=favor(m=15, features=hyperbolic)'", "m=15", "even"),
    ("train --set model.layout=relu*3", "'relu*3'", "must be a multiple of this"),
    ("train --set model.layout=relu,softmax", "'relu,softmax'", "write name or name(key=value, ...)"),
    ("train --set model.layout=performer", "'performer'", "did you mean 'all_performer'"),
    ("train --set 'model.layout=relu(m=1e3)'", "m=1000.0", "an integer"),
    ("train --set model.layout=", "''", "write name or name(key=value, ...)"),
    ("train --set 'model.stem=patch(2, 3, 4)'", "patch(2, 3, 4)", "patch(size=(4, 4), crop=False)"),
    ("train --set model.stem.size=3", "'stem.size'", "did you mean 'stem'"),
    ("train --set model.depth=100000", "depth=100000", "at most 1000"),
    ("train --set model.dim==3", "dim='=3'", "an integer"),
    ("train --set .dim=3", "''", "known: data, model, train"),
    ("train --set model.heads=5", "heads=5", "choose heads that do, or give head_dim"),
    ("train --set model.dim=wide", "dim='wide'", "an integer"),
    ("train --set model.depth=0", "depth=0", "at least 1"),
    ("train --set model.dropout=1.5", "dropout=1.5", "below 1"),
    ("train --set model.norm=layer", "norm='layer'", "'pre', 'post'"),
    ("train --set model.image_size=64", "model.image_size", "data.preprocess=resize(64)"),
    ("train --set model.classes=3", "model.classes", "the data set determines it"),
    ("train --set 'model.stem=patch(3)'", "(3, 3)", "choose a divisor, set crop=True"),
    ("train --set 'model.stem=pach(4)'", "'pach'", "did you mean 'patch'"),
    ("train --set 'model.stem=conv(pool=first)'", "pool=first", "'last' or 'each'"),
    ("train --set model.position=rope", "'rope'", "did you mean 'rope2d'"),
    ("train --set model.head=clss", "'clss'", "did you mean 'cls'"),
    ("train --set 'model.local=dwconv(4)'", "size=4", "must be odd"),
    ("train --set data.augment=flop", "'flop'", "did you mean 'flip'"),
    ("train --set 'data.augment=rotate(a)'", "degrees=a", "a number"),
    ("train --set 'data.preprocess=resiz(8)'", "'resiz'", "did you mean 'resize'"),
    ("train --set 'data.augment=crop(100)'", "crop(padding=100)", "at most 7"),
    ("train --set data.preprocess=letterbox", "letterbox(height, width=None)", "height is missing"),
    ("train --set 'data.preprocess=crop(9)|resize(3)'", "'crop(9)|resize(3)'", "keep one"),
    ("train --set data.subset=1000000", "subset=1000000", "a count in 1..1437"),
    ("train --set data.validation=2.5", "validation=2.5", "for a count write 2"),
    # train: combinations
    ("train --set data.validation=0", "data.validation=0", "or train.select=last"),
    ("train --set data.folds=3", "fold=None", "give both"),
    ("train --set data.fold=1", "folds=None", "give both"),
    ("train --folds 3 --set data.fold=1", "--folds", "give only one of them"),
    ("train --folds 3 --set data.validation=0.2", "--folds 3", "give one"),
    ("train --folds 3 --set data.validation=0.1", "--folds 3", "give one"),
    ("train --set data.folds=3 --set data.fold=0 --set data.validation=0.2", "data.folds=3", "give one of them"),
    ("train --set train.warmup=11", "train.warmup=11", "set train.warmup to at most 10"),
    ("train --epochs 2 --set train.warmup=2.5", "train.warmup=2.5", "set train.warmup to at most 2"),
    ("train --epochs 3 --set train.epochs=2", "--epochs 3", "give one of them"),
    ("train --set model.position=rope2d --set model.head_dim=6", "head_dim=6", "divisible by 4"),
    # runs that exist, or not
    ("evaluate", "RUN", "is missing (see favorit evaluate --help)"),
    ("evaluate nowhere", "nowhere", "`favorit runs` lists the runs"),
    ("evaluate text.txt", "text.txt", "`favorit runs` lists runs"),
    (f"evaluate {RUN} --json --csv", "--json and --csv", "choose one"),
    ("evaluate runs/unfinished", "unfinished", "`favorit runs` lists all runs"),
    ("evaluate runs/damaged", "runs/damaged/result.json", "delete"),
    ("evaluate runs/no-weights", "best.safetensors", "train again"),
    ("predict nowhere text.txt", "nowhere", "`favorit runs` lists the runs"),
    (f"predict {RUN}", "IMAGE...", "is missing (see favorit predict --help)"),
    (f"predict {RUN} nowhere.png", "nowhere.png", "not found"),
    (f"predict {RUN} broken.png", "broken.png", "cannot be read as an image"),
    (f"predict {RUN} empty", "empty", "expected .png"),
    (f"predict {RUN} broken.png --top 0", "--top 0", "at least 1"),
    (f"compare {RUN}", RUN, "give another one to compare it with"),
    (f"compare {RUN} nowhere", "nowhere", "`favorit runs` lists the runs"),
    (f"compare {RUN} ,", "", "at least one run"),
    ("compare hybrid", "hybrid is one variant", "did you mean 'hybrids'"),
    (f"compare {RUN} {RUN}", "RUN is given twice", "with itself"),
    (f"compare {RUN} runs/unfinished --against {RUN}", f"--against {RUN}", "leave it out"),
    ("compare quickstart --runs nowhere", "0 variants in nowhere", "give the --runs"),
    ("doctor nowhere", "nowhere", "`favorit runs` lists the runs"),
    (f"doctor {RUN} --images 0", "images=0", "at least 1"),
    (f"doctor {RUN} --images x", "--images x", "an integer (see favorit doctor --help)"),
    (f"doctor {RUN} --m 0", "--m 0", "such as 64,128,256"),
    (f"doctor {RUN} --m x", "--m x", "such as 64,128,256"),
    (f"doctor {RUN} --out nowhere/heads.csv", "--out nowhere/heads.csv", "create it first"),
    (f"doctor {RUN} --out /proc/heads.csv", "--out /proc/heads.csv", "choose another place"),
    (f"doctor {RUN} --figure heads.xyz", "--figure heads.xyz", "use .png, .svg or .pdf"),
    (f"doctor {RUN} --figure heads", "--figure heads", "a file name with a suffix"),
    (f"runs {RUN}", f"{RUN} is a run", "give the folder that it is in"),
    (f"runs pack {RUN} --to packed", f"{RUN} is a run", "give the folder that it is in"),
    ("runs nowhere", "nowhere does not exist", "give a folder of runs"),
    ("runs --where test", "'test'", "write FIELD=VALUE"),
    ("runs --where 'test>abc'", "'abc'", "not a number"),
    ("runs --where 'tests>0.5'", "'tests'", "did you mean 'test'"),
    ("runs --sort tset", "'tset'", "did you mean 'test'"),
    ("runs --reverse", "--reverse", "needs --sort FIELD"),
    ("runs text.txt", "text.txt", "not a folder"),
    ("runs --jsn", "--jsn", "--json"),
    ("runs pack nowhere --to packed", "nowhere", "not a folder of runs"),
    ("runs pack runs --to text.txt", "--to text.txt", "give a folder"),
    ("runs pack runs --to /proc/packed", "--to /proc/packed", "choose another place"),
    # models and components
    ("show", "PRESET", "is missing (see favorit show --help)"),
    ("show vit64", "'vit64'", "did you mean 'vit-64'"),
    ("show vit-64 --set dim=3", "'dim=3'", "write --set section.key=value"),
    ("show vit-64 --set train.lr=1", "'train'", "known: model"),
    ("show vit-64 --set model.dim=3", "dim=3", "choose heads that do"),
    ("list mixer", "'mixer'", "did you mean 'mixers'"),
    ("list mixers --json --latex", "--json and --latex", "choose one"),
    # data
    ("data fetch cifar1", "'cifar1'", "did you mean 'cifar10'"),
    ("data fetch folder:nowhere", "folder:nowhere", "not found"),
    ("data show", "NAME", "is missing (see favorit data show --help)"),
    ("data show digit", "'digit'", "did you mean 'digits'"),
    ("data show digits --out nowhere/x.png", "--out nowhere/x.png", "create it first"),
    ("data show digits --out x", "--out x", "a file name with a suffix"),
    ("data show digits --out x.txt", "--out x.txt", "use .png, .svg or .pdf"),
    ("data show digits --out /proc/x.png", "--out /proc/x.png", "choose another place"),
    ("data show digits --augment flop", "'flop'", "did you mean 'flip'"),
    ("data show digits --patch 99", "patch=99", "1..8"),
    ("data show digits --seed -1", "--seed -1", "at least 0 (see favorit data show --help)"),
    # studies
    ("study plan hybrid", "'hybrid'", "did you mean 'hybrids'"),
    ("study plan nowhere.py", "nowhere.py", "no such file"),
    ("study plan fails.py", "fails.py", "ModuleNotFoundError"),
    ("study plan empty.py", "empty.py", "must hold STUDY = Study("),
    ("study plan misspelled.py", "'model.dims'", "did you mean 'model.dim'"),
    ("study plan equal.py", "points 1 and 2", "are the same"),
    ("study plan unbuildable.py", "(3, 3)", "choose a divisor"),
    ("study plan quickstart --epochs 0", "--epochs 0", "at least 1"),
    ("study plan quickstart --seeds 0,,1", "--seeds 0,,1", "such as 0,1,2"),
    ("study plan quickstart --seeds 0-2", "--seeds 0-2", "such as 0,1,2"),
    ("study plan quickstart --subset 0.5", "--subset 0.5", "an integer"),
    ("study plan quickstart --scale small", "'small'", "known: published, smoke"),
    ("study plan quickstart --seeds -1", "seed=-1", "at least 0"),
    ("study plan quickstart --only nothing", "'nothing'", "a point is named like 'layout=softmax'"),
    ("study plan hybrids --scale smal", "'smal'", "did you mean 'small'"),
    ("study plan quickstart --protocol soud", "'soud'", "did you mean 'sound'"),
    ("study plan quickstart --workers 0", "--workers 0", "at least 1"),
    ("study run quickstart --hours soon", "--hours soon", "a number"),
    ("study run quickstart --cpus 2", "cpus=2", "add --ray ADDRESS"),
    ("study run quickstart --out text.txt", "--out text.txt", "give the folder of the runs"),
    ("study run quickstart --out /proc/runs", "--out /proc/runs", "choose another place"),
    ("study run quickstart --pack text.txt", "--pack text.txt", "give a folder"),
    ("study run quickstart --accelerator cpuu", "'cpuu'", "did you mean 'cpu'"),
    ("study status quickstart --runs text.txt", "text.txt", "give the folder of the runs"),
    ("study queue nowhere.yaml", "nowhere.yaml", "no such file"),
    ("study queue broken.yaml", "broken.yaml", "is not YAML: line 1"),
    ("study queue section.yaml", "section.yaml", "must be a list of entries such as"),
    ("study queue broken.yaml --discard", "--discard", "needs --pack FOLDER"),
    ("study queue broken.yaml --nice 99", "--nice 99", "at most 19"),
    # tuning
    ("tune quickstar", "'quickstar'", "did you mean 'quickstart'"),
    ("tune nowhere.yaml", "nowhere.yaml", "no such file"),
    ("tune broken.yaml", "broken.yaml", "is not YAML: line 1"),
    ("tune list.yaml", "list.yaml", "lines such as train.lr: log(1e-4, 3e-3)"),
    ("tune space.yaml", "'train.lrr'", "did you mean 'train.lr'"),
    ("tune bounds.yaml", "low=1.0", "above high=0.1"),
    ("tune words.yaml", "'fast'", "train.lr"),
    ("tune quickstart --trials 0", "--trials 0", "at least 1"),
    ("tune quickstart --sampler tp", "'tp'", "did you mean 'tpe'"),
    ("tune quickstart --pruner medain", "'medain'", "did you mean 'median'"),
    ("tune quickstart --objective accurcy", "'accurcy'", "did you mean 'accuracy'"),
    ("tune quickstart --objective accuracy,latency --pruner median", "'median'", "use none"),
    ("tune quickstart --storage mysql://host", "'mysql://host'", "use sqlite:///FILE"),
    ("tune quickstart --name 'a b'", "'a b'", "use letters, digits"),
    ("tune quickstart --set data.validation=0", "data.validation=0", "set data.validation above 0"),
    ("tune quickstart --accelerator cpuu", "'cpuu'", "did you mean 'cpu'"),
    ("tune quickstart --out /proc/runs", "--out /proc/runs", "choose another place"),
    # benchmarks and the self-test
    ("bench speed --tokens 0", "--tokens 0", "at least 1 (see favorit bench speed --help)"),
    ("bench speed --mixer sofmax", "'sofmax'", "did you mean 'softmax'"),
    ("bench speed --mixer 'relu(m=0)'", "m=0", "at least 1"),
    ("bench speed --preset vit64", "'vit64'", "did you mean 'vit-64'"),
    ("bench speed --preset vit-64 --mixer relu", "--mixer", "give only one kind"),
    ("bench speed --set model.depth=2", "--set", "give one with --preset"),
    ("bench speed --layouts some", "--layouts some", "the only value is all"),
    ("bench speed --out nowhere/x.csv", "--out nowhere/x.csv", "create it first"),
    ("bench crossover --most-tokens 100 --patch 8", "785 tokens", "raise --most-tokens, or leave out --patch"),
    ("bench crossover --image 33 --patch 8", "--patch 8", "give a divisor"),
    ("bench crossover --device tpu", "device=tpu", "write cpu, cuda or mps"),
    ("bench crossover --tokens 5,", "--tokens 5,", "an integer"),
    ("bench crossover --mixer sofmax", "'sofmax'", "did you mean 'softmax'"),
    ("bench crossover --figure x.xyz", "--figure x.xyz", "use .png, .svg or .pdf"),
    ("bench approximation --m 2.5", "--m 2.5", "such as 64,128,256"),
    ("bench approximation --std a", "--std a", "a number"),
    ("bench approximation --std 0", "std=0", "between 0.01 and 100"),
    ("bench approximation --kernel favr", "'favr'", "did you mean 'favor'"),
    ("bench approximation --draws 0", "draws=0", "at least 1"),
    ("bench epoch --data cifar1", "'cifar1'", "did you mean 'cifar10'"),
    ("bench peers --case hybird", "'hybird'", "did you mean 'hybrid'"),
    ("bench peers --only nope", "'nope'", "softmax / torch SDPA"),
    ("bench busy --preset vit64", "'vit64'", "did you mean 'vit-64'"),
    ("selftest --device gpu", "'gpu'", "did you mean 'cpu'"),
    ("selftest --only nope", "'nope'", "checks: "),
]
# Words of libraries, which a user does not know.
FOREIGN = ("Traceback", "Input should be", "input should be", "valid tuple", "pydantic", "unicode string", "Errno")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one trained run, damaged copies of it, and files with mistakes."""
    folder = tmp_path_factory.mktemp("workspace")
    run, _ = fit(folder / "trained", tiny(train=dict(epochs=1)))
    copies = {name: folder / "runs" / name for name in ("RUN", "unfinished", "damaged", "no-weights")}
    for copy in copies.values():
        shutil.copytree(run.path, copy)
    (copies["unfinished"] / "result.json").unlink()
    (copies["damaged"] / "result.json").write_text("{")
    (copies["no-weights"] / "best.safetensors").unlink()
    (folder / "empty").mkdir()
    (folder / "flat").mkdir()
    (folder / "flat" / "1.png").write_text("an image outside of class folders")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    return folder


def test_table_has_at_least_100_different_mistakes():
    assert len({line for line, *_ in MISTAKES}) == len(MISTAKES) >= 100


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[0])
def test_mistake_is_one_line_that_names_the_fix(command, workspace: Path, monkeypatch, mistake):
    line, repeated, fix, *status = mistake
    monkeypatch.chdir(workspace)
    before = dict(files(workspace))
    found, out, err = command(*shlex.split(line))
    assert found == (status[0] if status else 2), (out, err)
    assert err.startswith("favorit: "), err
    assert err.count("\n") == 1, err
    assert repeated in err
    assert fix in err
    assert not [word for word in FOREIGN if word in err], err
    assert dict(files(workspace)) == before
