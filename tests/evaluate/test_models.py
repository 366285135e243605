"""Evaluation of encoder-decoders and vision models, against a plain loop."""

import json
import re
import shutil
import warnings

import numpy as np
import pytest
import transformers
from PIL import Image
from scipy.stats import spearmanr

from attnflow.cli import main
from attnflow.errors import OptionError, TextError
from attnflow.evaluate import Evaluation, evaluate
from attnflow.evaluate.baselines import IMAGE_BASELINES
from attnflow.evaluate.faithfulness import faithfulness
from attnflow.importance import importance
from attnflow.models import Explainer
from tests.support.pair import WORDS, build_pair, photo
from tests.support.tiny import sharpen

FEW = {"samples": 50, "permutations": 49}
METHODS = ("raw", "rollout", "flow")


def correlation(scores, values):
    with warnings.catch_warnings():
        # Scores that are all the same have no correlation, and scipy says so.
        warnings.simplefilter("ignore")
        return spearmanr(scores, values).statistic


def plain(explainer, item, references, *, position="auto", token=None, edges, layer):
    """The correlations for one question, by the functions that a user has for single inputs.

    In the order of references, methods, without and with the receptive field, and special tokens
    kept and left out.
    """
    explained = [
        explainer.explain(
            item,
            method=method,
            position=position,
            edges=edges,
            target=token,
            receptive_field=relative,
        )
        for method in METHODS
        for relative in (False, True)
    ]
    result = []
    for reference in references:
        values = importance(explainer, item, reference=reference, position=position, target=token)
        values = values[: len(explained[0].tokens)]
        for explanation in explained:
            scores = explanation.layer_scores[layer - 1]
            ordinary = ~np.array(explanation.special)
            result.append(correlation(scores, values))
            result.append(correlation(scores[ordinary], values[ordinary]))
    return result


def evaluated(found, index, layer):
    """The same correlations as an evaluation has them."""
    return [
        found.per_text(
            method,
            layer,
            reference=reference,
            receptive_field=relative,
            special_tokens=special,
        )[index]
        for reference in found.references
        for method in METHODS
        for relative in (False, True)
        for special in (True, False)
    ]


# ---- Encoder-decoders ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["T5", "BART"])
def translator(request):
    explainer = build_pair(request.param)
    # It writes words, and no end.
    explainer.model.generation_config.suppress_tokens = [0, 1, 2, 3]
    return explainer


ORDINARY = WORDS[5:]
SOURCES = [" ".join(ORDINARY[i : i + 4 + i % 2]) for i in (0, 2, 4)]
TARGETS = [" ".join(ORDINARY[i : i + 2]) for i in (3, 1, 5)]


def asked(explainer, target):
    """Where each token of a target is written, and the token."""
    ids = explainer.tokenizer(target, add_special_tokens=False)["input_ids"]
    return list(enumerate(ids))


@pytest.mark.parametrize("edges", ["attention", "gradient"])
def test_the_correlation_of_a_pair_is_the_mean_over_the_tokens_of_its_target(translator, edges):
    pairs = list(zip(SOURCES, TARGETS, strict=True))[:2]
    references = ("blank_out", "gradient_x_input")
    options = {"edges": edges, "references": references, "receptive_field": (False, True)}
    found = evaluate(translator, pairs, **options, **FEW)
    assert found.task == "seq2seq-lm"
    assert found.layers == (1, 2)
    assert [text.target for text in found.texts] == TARGETS[:2]
    for index, pair in enumerate(pairs):
        expected = np.mean(
            [
                plain(
                    translator, pair, references, position=place, token=token, edges=edges, layer=2
                )
                for place, token in asked(translator, pair[1])
            ],
            axis=0,
        )
        np.testing.assert_allclose(evaluated(found, index, 2), expected, atol=1e-9)


def test_without_a_target_the_model_writes_one(translator):
    found = evaluate(translator, SOURCES, max_new_tokens=3, methods="rollout", **FEW)
    written = [
        "".join(step.target for step in translator.generate(source, max_new_tokens=3, method="raw"))
        for source in SOURCES
    ]
    said = [text.target.replace(" ", "") for text in found.texts]
    assert said == [text.replace(" ", "") for text in written]
    given = [(source, text.target) for source, text in zip(SOURCES, found.texts, strict=True)]
    again = evaluate(translator, given, methods="rollout", **FEW)
    np.testing.assert_array_equal(again.correlations, found.correlations)
    assert found.options["max_new_tokens"] == 3


def test_one_position_of_a_target_may_be_asked_about(translator):
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    for position in ("last", 1):
        found = evaluate(translator, pairs, position=position, **FEW)
        for index, pair in enumerate(pairs):
            explanation = translator.explain(pair, method="flow", position=position)
            values = importance(translator, pair, position=position)[: len(explanation.tokens)]
            expected = correlation(explanation.scores, values)
            np.testing.assert_allclose(found.per_text("flow", -1)[index], expected, atol=1e-9)
            assert found.texts[index].prediction == explanation.prediction
            assert found.texts[index].position == explanation.position
    token = ORDINARY[0]
    found = evaluate(translator, pairs, position="last", targets=token, **FEW)
    assert {text.target for text in found.texts} == {token}


def test_the_sinks_of_a_pair_are_two(translator):
    pair = (SOURCES[0], TARGETS[0])
    options = {"position": "last", "methods": "rollout"}
    found = evaluate(translator, [pair], drop_sink=True, **options, **FEW)
    explanation = translator.explain(pair, method="raw", position="last")
    dropped = translator.explain(pair, method="rollout", position="last", drop_sink=True)
    # The note names them: "token 0, 'x' and token 7, 'y'".
    places = [
        int(part.split(",")[0]) for part in dropped.notes[-1].split("token ")[1:] if part[0] != "s"
    ]
    assert len(places) == len(explanation.tokens) - len(dropped.tokens)
    values = np.delete(importance(translator, pair, position="last"), places)
    expected = correlation(dropped.scores, values)
    np.testing.assert_allclose(found.per_text("rollout", -1)[0], expected, atol=1e-9)


def test_tokens_of_a_pair_are_really_removed():
    translator = build_pair("T5")
    pair = (SOURCES[0], TARGETS[0])
    found = evaluate(
        translator, [pair], faithfulness=True, methods="rollout", baselines=False, **FEW
    )
    expected = [
        faithfulness(
            translator,
            pair,
            translator.explain(pair, method="rollout", position=place).scores,
            target=token,
            position=place,
        )
        for place, token in asked(translator, pair[1])
    ]
    got = found.faithfulness[0, 0, 0, 0, 1]
    np.testing.assert_allclose(got, np.mean(expected, axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (SOURCES, {"targets": ORDINARY[0]}, "target"),
        (SOURCES, {"position": "cls"}, "position.*'cls'.*auto.*last"),
        (SOURCES, {"layers": [3]}, "layer"),
        (SOURCES, {"max_new_tokens": 0}, "max_new_tokens.*0"),
        (SOURCES, {"baselines": "centre"}, "baselines.*'centre'.*random"),
        (SOURCES, {"removal": "unk"}, "removal.*'unk'.*faithfulness"),
    ],
)
def test_wrong_options_for_a_pair_are_named(texts, options, message):
    with pytest.raises(OptionError, match=message):
        evaluate(build_pair("T5"), texts, **options)


def test_pairs_that_cannot_be_evaluated_are_reported():
    translator = build_pair("BART")
    texts = [SOURCES[0], "", (SOURCES[1], "x " * 40), 3, (SOURCES[2], TARGETS[2])]
    found = evaluate(translator, texts, methods="raw", max_new_tokens=2, **FEW)
    assert [item.number for item in found.skipped] == [2, 3, 4]
    assert re.search("source.*empty", found.skipped[0].reason)
    assert "41 tokens" in found.skipped[1].reason
    assert "tuple" in found.skipped[2].reason


# ---- Images --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeing():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=24,
        patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "bird"},
    )
    model = sharpen(transformers.ViTForImageClassification(config), 0.3)
    return Explainer(model, transformers.ViTImageProcessorPil(size={"height": 24, "width": 24}))


PHOTOS = [photo(seed) for seed in range(3)]


@pytest.mark.parametrize("edges", ["attention", "gradient", "effective", "value_norm"])
def test_correlations_of_images_are_those_of_explain_and_importance(seeing, edges):
    references = ("blank_out", "gradient_norm")
    options = {"edges": edges, "references": references, "receptive_field": (False, True)}
    found = evaluate(seeing, PHOTOS, **options, **FEW)
    assert found.baselines == IMAGE_BASELINES
    for index, image in enumerate(PHOTOS):
        expected = plain(seeing, image, references, edges=edges, layer=1)
        np.testing.assert_allclose(evaluated(found, index, 1), expected, atol=1e-9)
    assert Evaluation.from_dict(found.to_dict()) == found


def test_a_class_and_a_patch_may_be_asked_about(seeing):
    found = evaluate(
        seeing,
        PHOTOS,
        targets=["cat", 1, None],
        position="1,2",
        edges="gradient",
        drop_sink=True,
        **FEW,
    )
    assert [text.target for text in found.texts[:2]] == ["cat", "dog"]
    assert {text.position for text in found.texts} == {6}
    whole = seeing.explain(PHOTOS[0], method="flow", position="1,2", edges="gradient", target=0)
    dropped = seeing.explain(
        PHOTOS[0], method="flow", position="1,2", edges="gradient", target=0, drop_sink=True
    )
    kept = [whole.tokens.index(token) for token in dropped.tokens]
    values = importance(seeing, PHOTOS[0], target="cat")
    expected = correlation(dropped.scores, values[kept])
    np.testing.assert_allclose(found.per_text("flow", -1)[0], expected, atol=1e-9)


def test_arrays_pillow_images_and_files_are_the_same_images(seeing, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path, image in zip(paths, PHOTOS, strict=True):
        Image.fromarray(image).save(path)
    options = {"methods": "rollout", **FEW}
    arrays = evaluate(seeing, PHOTOS, **options)
    for images in (paths, list(map(str, paths)), [Image.fromarray(image) for image in PHOTOS]):
        assert evaluate(seeing, images, **options) == arrays


def test_patches_near_the_middle_score_high_by_the_baseline(seeing):
    values = importance(seeing, PHOTOS[0])
    away = [abs(row - 1) ** 2 + abs(column - 1) ** 2 for row in range(3) for column in range(3)]
    found = evaluate(seeing, PHOTOS[:1], **FEW)
    expected = correlation(-np.array(away), values[1:])
    got = found.per_text("centre", special_tokens=False)[0]
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_patches_are_painted_over_to_remove_them(seeing):
    options = {"methods": "rollout", "layers": [2], "baselines": False, **FEW}
    found = evaluate(seeing, PHOTOS[:2], faithfulness=True, **options)
    for index, image in enumerate(PHOTOS[:2]):
        expected = faithfulness(seeing, image, seeing.explain(image, method="rollout").scores)
        np.testing.assert_allclose(found.faithfulness[index, 0, 0, 0, 0], expected, atol=1e-9)
    with pytest.raises(OptionError, match=r"patches.*'auto'"):
        evaluate(seeing, PHOTOS[:1], faithfulness=True, removal="delete", **options)


def test_an_image_that_cannot_be_read_stops_nothing(seeing, tmp_path):
    broken, fine = tmp_path / "broken.png", tmp_path / "fine.png"
    broken.write_bytes(b"no image")
    Image.fromarray(PHOTOS[0]).save(fine)
    options = {"methods": "raw", **FEW}
    found = evaluate(seeing, [fine, broken, tmp_path / "none.png", "x", 7], **options)
    assert [item.number for item in found.skipped] == [2, 3, 4, 5]
    reasons = [item.reason for item in found.skipped]
    assert "broken.png" in reasons[0]
    assert "there is no such file" in reasons[1]
    with pytest.raises(TextError, match="images"):
        evaluate(seeing, ["x"], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baselines": "frequency"}, "baselines.*'frequency'.*random.*centre"),
        ({"frequencies": {"a": 1}}, "images"),
        ({"replacement": "unk"}, "images.*'auto'"),
        ({"truncate": True}, "truncate.*True.*text"),
        ({"targets": "fish"}, "target.*'fish'.*cat.*dog.*bird"),
    ],
)
def test_wrong_options_for_images_are_named(seeing, options, message):
    with pytest.raises(OptionError, match=message):
        evaluate(seeing, PHOTOS, **options)


def test_a_store_of_other_images_is_refused(seeing, tmp_path):
    store, path = tmp_path / "run.jsonl", tmp_path / "image.png"
    options = {"methods": "raw", "store": store, **FEW}
    Image.fromarray(PHOTOS[0]).save(path)
    whole = evaluate(seeing, [path, PHOTOS[1]], **options)
    assert evaluate(seeing, [path, PHOTOS[1]], **options) == whole
    Image.fromarray(PHOTOS[2]).save(path)
    with pytest.raises(OptionError, match="2 texts"):
        evaluate(seeing, [path, PHOTOS[1]], **options)


# ---- The command ---------------------------------------------------------------------------------


def run(model, data, *options):
    few = ["--samples", "50", "--permutations", "49", "--workers", "1"]
    return main(["evaluate", "--model", str(model), "--data", str(data), *few, *map(str, options)])


def saved(explainer, folder):
    explainer.model.save_pretrained(folder)
    explainer.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vit(seeing, tmp_path_factory):
    return saved(seeing, tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return saved(build_pair("T5"), tmp_path_factory.mktemp("t5"))


@pytest.fixture
def album(tmp_path):
    """Photos in a folder and in one below it, and what is no photo."""
    folder = tmp_path / "album"
    (folder / "more").mkdir(parents=True)
    for name, image in zip(("b.png", "a.PNG", "more/c.bmp"), PHOTOS, strict=True):
        Image.fromarray(image).save(folder / name)
    (folder / "notes.txt").write_text("a.PNG\nmore/c.bmp\nnone.png\n")
    (folder / "labels.csv").write_text("path,class\na.PNG,dog\nb.png,0\n")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def test_a_folder_of_images_is_evaluated_by_name(vit, seeing, album, capsys):
    assert run(vit, album, "--methods", "rollout", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    expected = evaluate(
        seeing, [PHOTOS[1], PHOTOS[0], PHOTOS[2]], methods="rollout", workers=1, **FEW
    ).to_dict(per_text=False)
    assert found["results"] == expected["results"]
    assert found["baselines"] == expected["baselines"]
    assert run(vit, album / "b.png", "--methods", "raw") == 0
    assert "1 text" in capsys.readouterr().out


def test_paths_in_a_file_are_seen_from_where_the_file_is(vit, album, tmp_path, capsys):
    output = tmp_path / "all.json"
    assert run(vit, album / "notes.txt", "--methods", "raw", "--output", output) == 0
    found = Evaluation.load(output)
    assert [text.number for text in found.texts] == [1, 2]
    assert [item.number for item in found.skipped] == [3]
    options = ("--text-column", "path", "--label-column", "class", "--output", output)
    assert run(vit, album / "labels.csv", "--methods", "raw", *options) == 0
    assert [text.target for text in Evaluation.load(output).texts] == ["dog", "cat"]


def test_targets_come_from_a_column_or_from_the_model(t5, tmp_path, capsys):
    data, output = tmp_path / "pairs.csv", tmp_path / "all.json"
    rows = "".join(f"{source},{target}\n" for source, target in zip(SOURCES, TARGETS, strict=True))
    data.write_text("en,de\n" + rows)
    options = ("--text-column", "en", "--methods", "raw", "--output", output)
    assert run(t5, data, "--target-column", "de", *options) == 0
    found = Evaluation.load(output)
    assert [text.target for text in found.texts] == TARGETS
    assert "max_new_tokens" in found.options
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    expected = evaluate(build_pair("T5"), pairs, methods="raw", workers=1, **FEW)
    np.testing.assert_array_equal(found.correlations, expected.correlations)


def test_data_of_another_kind_are_refused(vit, t5, album, tmp_path, capsys):
    for arguments, message in (
        ((t5, album), "images.*seq2seq-lm"),
        ((vit, album, "--format", "csv"), "--format"),
        ((vit, album, "--limit", "0"), "limit.*0"),
        ((t5, album / "labels.csv", "--text-column", "path", "--label-column", "class"),
        "--target-column"),
        ((vit, album / "labels.csv", "--text-column", "path", "--target-column", "class"),
        "--label-column"),
        ((vit, album, "--faithfulness", "--removal", "delete"), "removal.*'auto'"),
    ):  # fmt: skip
        assert run(*arguments) == 1
        said = capsys.readouterr().err
        assert re.search(message, said), said
    shutil.rmtree(album / "more")
    for name in ("a.PNG", "b.png"):
        (album / name).unlink()
    assert run(vit, album) == 1
    assert ".png" in capsys.readouterr().err
