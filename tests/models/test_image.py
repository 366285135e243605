"""From an image to an explanation, on tiny vision models of random weights."""

import copy
import io
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import attnflow
from attnflow.explanation import Explanation
from attnflow.models import Explainer
from attnflow.models import image as module
from attnflow.models.image import ImageAdapter
from tests.support.vision import (
    CLASSIFIERS,
    LABELS,
    MODELS,
    SIZES,
    explain,
    make,
    model_class,
    photo,
    processor,
)

PATCHES = tuple(f"{row},{column}" for row in range(4) for column in range(4))


@pytest.fixture(scope="module")
def models():
    return {name: make(name) for name in MODELS}


def cropping(edge=32):
    """Resizes the shorter edge, and cuts out the middle."""
    return transformers.CLIPImageProcessorPil(
        size={"shortest_edge": edge}, crop_size={"height": 32, "width": 32}
    )


def eager(model, image, prepare=None, **options):
    """What the model's own eager attention returns, asked for the ordinary way."""
    own = copy.deepcopy(model)
    own.set_attn_implementation("eager")
    pixels = (prepare or processor())(images=Image.fromarray(image), return_tensors="pt")
    return own(**pixels, output_attentions=True, **options)


METHODS = {
    "raw": lambda attentions: attnflow.raw_attention(attentions)[:, 0],
    "rollout": lambda attentions: attnflow.attention_rollout(attentions)[:, 0],
    "flow": lambda attentions: attnflow.attention_flow(attentions)[:, 0],
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_method_on_the_models_attention(models, name, method):
    with torch.no_grad():
        outputs = eager(models[name], photo())
    explanation = explain(models[name], photo(), method=method, layer=2, position="cls")
    expected = METHODS[method]([layer.double() for layer in outputs.attentions])
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-6)
    np.testing.assert_array_equal(explanation.scores, explanation.layer_scores[1])
    assert (explanation.method, explanation.layer, explanation.position) == (method, 2, 0)
    assert (explanation.saturation is None) == (method != "flow")


@pytest.mark.parametrize("name", MODELS)
def test_special_tokens_are_told_apart_and_patches_are_named_by_their_place(models, name):
    special = MODELS[name][1]
    assert ImageAdapter.fits(models[name])
    explanation = explain(models[name], photo(), method="rollout")
    assert explanation.tokens == special + PATCHES
    assert explanation.special == (True,) * len(special) + (False,) * 16
    assert explanation.grid == (4, 4)
    assert explanation.text == ""
    patches = explain(models[name], photo(), method="rollout", special_tokens=False)
    assert patches.tokens == PATCHES
    np.testing.assert_array_equal(patches.scores, explanation.scores[len(special) :])
    np.testing.assert_array_equal(patches.map(), patches.scores.reshape(4, 4))
    np.testing.assert_array_equal(explanation.map(), patches.map())


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifiers_prediction_comes_with_its_probability(models, name):
    with torch.no_grad():
        probabilities = eager(models[name], photo()).logits[0].softmax(0)
    index = int(probabilities.argmax())
    explanation = explain(models[name], photo(), method="rollout")
    assert explanation.task == "image-classification"
    assert explanation.prediction.label == explanation.target == LABELS[index]
    assert explanation.prediction.index == index
    assert explanation.prediction.probability == pytest.approx(float(probabilities[index]), 1e-5)
    assert explain(models[name], photo(), method="raw", target="dog").target == "dog"
    assert explain(models[name], photo(), method="raw", target=-1).target == "bird"


def test_a_model_without_a_classifier_predicts_nothing(models):
    explanation = explain(models["CLIPVisionModelWithProjection"], photo(), method="raw")
    assert explanation.task == "image-encoder"
    assert explanation.prediction is None
    assert explanation.target is None


def test_an_answer_that_two_tokens_share_is_explained_by_both(models):
    model = models["DeiTForImageClassificationWithTeacher"]
    shared = explain(model, photo(), method="raw")
    assert [read.position for read in shared.reads] == [0, 1]
    alone = [explain(model, photo(), method="raw", position=place) for place in ("cls", "[DIST]")]
    weights = [read.weight for read in shared.reads]
    expected = sum(weight * one.scores for weight, one in zip(weights, alone, strict=True))
    np.testing.assert_allclose(shared.scores, expected)
    assert [read.position for read in explain(model, photo()).reads] == [0, 1]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_gradient_edges_are_attention_times_its_gradient(models, name):
    outputs = eager(models[name], photo())
    gradients = torch.autograd.grad(outputs.logits[0, 1], outputs.attentions)
    rows = []
    for weights, gradient in zip(outputs.attentions, gradients, strict=True):
        edges = (weights * gradient).relu().mean(1)[0].detach().double().numpy()
        total = edges.sum(-1, keepdims=True)
        alone = np.eye(len(edges))
        rows.append(np.where(total > 0, edges / np.where(total > 0, total, 1), alone))
    options = {"edges": "gradient", "target": "dog", "position": "cls"}
    explanation = explain(models[name], photo(), method="rollout", **options)
    expected = attnflow.attention_rollout(rows)[:, 0]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-5)


def test_heads_residual_and_position_are_passed_on(models):
    model = models["ViTModel"]
    with torch.no_grad():
        attentions = eager(model, photo()).attentions
    options = {"heads": 1, "residual": 0.2}
    expected = attnflow.attention_rollout(attentions, **options)[:, 1 + 4 * 2 + 3]
    for position in ("2,3", 12, -5):
        explanation = explain(model, photo(), method="rollout", position=position, **options)
        assert explanation.position == 12
        np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-6)


@pytest.mark.parametrize("method", ["rollout", "flow"])
def test_the_ratio_to_uniform_attention_leaves_no_preference_where_there_is_none(method):
    model = make("ViTModel")
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight.zero_()
                layer.bias.zero_()
    plain = explain(model, photo(), method=method)
    assert plain.options["receptive_field"] is False
    assert plain.scores[0] > plain.scores[1]
    even = explain(model, photo(), method=method, receptive_field=True)
    np.testing.assert_allclose(even.layer_scores, 1 / 17, rtol=1e-6)


def test_a_sink_is_named_and_can_be_left_out():
    model = make("ViTModel")
    with torch.no_grad():
        # Only the patch in row 1 and column 2 has an embedding; all queries look for it.
        for parameter in model.parameters():
            parameter.zero_()
        model.embeddings.position_embeddings[0, 7, 0] = 10
        for name, module in model.named_modules():
            if name.endswith(("layernorm_before", "norm1")):
                module.weight.fill_(1)
            if name.endswith(("query", "q_proj")):
                module.bias.fill_(2)
            if name.endswith((".key", "k_proj")):
                module.weight[:, 0] = 4
    explanation = explain(model, photo(), method="raw")
    assert explanation.scores[7] > 0.5
    assert "Token 7, '1,2'" in explanation.notes[0]
    without = explain(model, photo(), method="raw", drop_sink=True)
    assert "token 7, '1,2'" in without.notes[0]
    assert "1,2" not in without.tokens
    # The map has no number for a patch that was left out, and one for all others.
    assert np.argwhere(np.isnan(without.map())).tolist() == [[1, 2]]
    large = without.map((16, 16))
    assert np.isnan(large[4:8, 8:12]).all()
    assert np.isnan(large).sum() == 16


def test_saturated_flow_comes_with_a_warning_in_words():
    config = transformers.ViTConfig(**{**SIZES, "num_hidden_layers": 8})
    explanation = explain(transformers.ViTModel(config).eval(), photo(), method="flow")
    assert explanation.saturation == 1
    assert re.search("saturated.*100%.*layer 8", explanation.notes[0])


# Images.


@pytest.mark.parametrize(
    ("name", "interpolates"),
    [
        ("ViTForImageClassification", True),
        ("DeiTForImageClassificationWithTeacher", True),
        ("Dinov2Model", False),
        ("Dinov2WithRegistersForImageClassification", False),
        ("CLIPVisionModel", True),
        ("CLIPVisionModelWithProjection", True),
    ],
)
def test_images_need_not_be_square(models, name, interpolates):
    wide = processor(size={"height": 24, "width": 50})
    with torch.no_grad():
        told = {"interpolate_pos_encoding": True} if interpolates else {}
        attentions = eager(models[name], photo(), wide, **told).attentions
    explanation = explain(models[name], photo(), wide, method="rollout", position="cls")
    assert explanation.grid == (3, 6)
    assert explanation.tokens[-1] == "2,5"
    expected = attnflow.attention_rollout(attentions)[:, 0]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-6)
    # Of 50 columns the patches cover 48.
    seen = explanation.map("image")
    assert seen.shape == (40, 60)
    assert np.isfinite(seen[:, :57]).all()
    assert np.isnan(seen[:, 58:]).all()


def test_a_model_made_for_images_that_are_not_square_needs_no_interpolation():
    config = transformers.ViTConfig(**{**SIZES, "image_size": (32, 16)})
    tall = processor(size={"height": 32, "width": 16})
    explanation = explain(transformers.ViTModel(config).eval(), photo(), tall, method="raw")
    assert explanation.grid == (4, 2)
    assert explanation.map((8, 4)).shape == (8, 4)


PROCESSORS = {
    "resized": processor(),
    "cut out of the middle": cropping(),
    "cut out of more": cropping(edge=45),
    "padded": cropping(edge=19),
    "a fixed size, cut": transformers.DeiTImageProcessorPil(
        size={"height": 41, "width": 41}, crop_size={"height": 32, "width": 32}
    ),
    "padded below": processor(
        size={"height": 24, "width": 20}, do_pad=True, pad_size={"height": 32, "width": 32}
    ),
    "a rest": processor(size={"height": 39, "width": 36}),
}


CUTTING = ("cut out of the middle", "cut out of more", "a fixed size, cut", "a rest")


@pytest.mark.parametrize("size", [(200, 200), (160, 240), (250, 170)])
@pytest.mark.parametrize("kind", PROCESSORS)
def test_the_map_puts_a_patch_where_the_model_saw_it(models, kind, size):
    prepare = PROCESSORS[kind]
    model = models["Dinov2Model"]  # takes every size
    explanation = explain(model, photo(*size), prepare, method="raw", special_tokens=False)
    rows, columns = explanation.grid
    numbered = Explanation.from_dict(
        {**explanation.to_dict(), "scores": list(range(rows * columns))}
    ).map("image", interpolation="nearest")
    assert numbered.shape == size
    places = [(y, x) for y in range(10, size[0] - 9, 30) for x in range(10, size[1] - 9, 30)]
    found = []
    for y, x in places:
        # A white dot on black, found again among the patches that the model is given.
        image = np.zeros((*size, 3), dtype=np.uint8)
        image[y - 3 : y + 4, x - 3 : x + 4] = 255
        given = prepare(images=[image, np.zeros_like(image)], return_tensors="np")["pixel_values"]
        light = np.abs(given[0] - given[1])[:, : rows * 8, : columns * 8].sum(axis=0)
        found.append(light.reshape(rows, 8, columns, 8).sum(axis=(1, 3)).ravel())
    whole = max(patches.sum() for patches in found)
    seen = unseen = 0
    for (y, x), patches in zip(places, found, strict=True):
        if patches.max() > 0.8 * whole:
            assert numbered[y, x] == patches.argmax()
            seen += 1
        elif not patches.any():
            assert np.isnan(numbered[y, x])
            unseen += 1
    assert seen >= 5
    cuts_here = kind in CUTTING and (kind != "cut out of the middle" or size[0] != size[1])
    assert (unseen > 0) == cuts_here


def test_a_smooth_map_is_bilinear(models):
    explanation = explain(models["ViTModel"], photo(), method="rollout")
    grid = torch.from_numpy(explanation.map())[None, None]
    expected = torch.nn.functional.interpolate(grid, (33, 50), mode="bilinear")[0, 0]
    np.testing.assert_allclose(explanation.map((33, 50)), expected, atol=1e-12)
    assert explanation.map("image").shape == (40, 60)
    # A map as small as the grid is the grid, whichever way it is drawn.
    for interpolation in ("bilinear", "nearest"):
        same = explanation.map((4, 4), interpolation=interpolation)
        np.testing.assert_allclose(same, explanation.map(), atol=1e-15)


@pytest.mark.parametrize("prepare", [processor(), cropping()])
def test_many_images_are_explained_as_one_by_one(models, prepare, monkeypatch):
    # Two images of one size to a batch.
    monkeypatch.setattr(module, "BATCH_POSITIONS", 40)
    images = [photo(40, 60, seed) for seed in range(5)] + [photo(50, 33), photo(32, 32)]
    model = models["ViTForImageClassification"]
    for edges in ("attention", "gradient"):
        options = {"method": "rollout", "edges": edges}
        together = dict(Explainer(model, prepare).explain_each(images, **options))
        assert sorted(together) == list(range(7))
        for index, image in enumerate(images):
            alone = explain(model, image, prepare, **options)
            assert together[index].options == alone.options
            assert together[index].prediction.label == alone.prediction.label
            np.testing.assert_allclose(together[index].layer_scores, alone.layer_scores, atol=1e-5)


def test_images_whose_sizes_differ_for_the_model_run_apart(models):
    keeping = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, do_center_crop=False)
    images = [photo(32, 64), photo(64, 32), photo(40, 80, seed=1)]
    found = dict(Explainer(models["ViTModel"], keeping).explain_each(images, method="rollout"))
    assert [found[i].grid for i in range(3)] == [(4, 8), (8, 4), (4, 8)]
    alone = explain(models["ViTModel"], images[2], keeping, method="rollout")
    np.testing.assert_allclose(found[2].layer_scores, alone.layer_scores, atol=1e-5)


def test_an_image_is_the_same_however_it_is_given(models, tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(photo()).save(path)
    given = [photo(), Image.fromarray(photo()), path, str(path)]
    found = dict(Explainer(models["ViTModel"], processor()).explain_each(given, method="rollout"))
    for index in range(1, 4):
        np.testing.assert_allclose(found[index].scores, found[0].scores, atol=1e-6)
        assert found[index].options == found[0].options


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_images_of_other_modes_are_turned_into_colours(models, mode):
    image = Image.fromarray(photo()).convert(mode)
    explanation = explain(models["ViTModel"], image, method="raw")
    expected = explain(models["ViTModel"], np.asarray(image.convert("RGB")), method="raw")
    np.testing.assert_array_equal(explanation.scores, expected.scores)


def test_a_photograph_from_a_file_is_turned_upright(models, tmp_path):
    path = tmp_path / "photo.png"
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.fromarray(photo()).save(path, exif=exif)
    turned = explain(models["ViTModel"], path, method="rollout")
    assert turned.options["image_size"] == (60, 40)
    expected = explain(models["ViTModel"], np.rot90(photo(), -1), method="rollout")
    np.testing.assert_allclose(turned.scores, expected.scores, atol=1e-6)


def test_an_image_of_three_rows_is_not_taken_for_one_of_three_colours(models):
    explanation = explain(models["ViTModel"], photo(3, 60), method="raw")
    assert explanation.options["image_size"] == (3, 60)


def test_one_image_is_told_from_many():
    picture = Image.fromarray(photo())
    assert module.list_images(picture) == ([picture], False)
    assert module.list_images([picture]) == ([picture], True)
    assert module.list_images(picture for _ in range(2)) == ([picture, picture], True)
    assert module.list_images(photo())[1] is False


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "inputs.*empty"),
        (7, r"inputs.*\bint\b"),
        ({"image": 1}, r"inputs.*\bdict\b"),
        ([None], r"inputs\[0\].*NoneType"),
        (photo()[..., 0], r"inputs.*\(40, 60\).*\(height, width, 3\)"),
        (photo()[None], r"inputs.*\(1, 40, 60, 3\).*\(height, width, 3\)"),
        (photo()[:0], r"inputs.*\(0, 60, 3\)"),
        ([photo(), photo() / 255], r"inputs\[1\].*float64.*uint8"),
        ("no-such.png", "inputs.*'no-such.png'"),
    ],
)
def test_what_is_no_image_is_named(inputs, message):
    with pytest.raises(attnflow.OptionError, match=message):
        module.list_images(inputs)


def test_a_file_that_is_no_image_is_named(models, tmp_path):
    path = tmp_path / "photo.png"
    path.write_text("no image")
    with pytest.raises(attnflow.OptionError, match=r"photo\.png"):
        explain(models["ViTModel"], path)
    whole = io.BytesIO()
    Image.fromarray(photo()).save(whole, "png")
    path.write_bytes(whole.getvalue()[:200])
    with pytest.raises(attnflow.OptionError, match=r"photo\.png"):
        explain(models["ViTModel"], path)


def test_without_pillow_an_array_is_read_and_a_file_says_what_to_install(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(photo()).save(path)
    code = (
        "import sys; sys.modules['PIL'] = sys.modules['PIL.Image'] = None\n"
        "import attnflow, numpy\n"
        "from attnflow.models import image as module\n"
        "print(module.list_images(numpy.zeros((2, 2, 3), numpy.uint8))[1])\n"
        f"try: module.list_images({str(path)!r})\n"
        "except attnflow.MissingExtraError as error: print(error)\n"
        "print('torch' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    before, message, after = result.stdout.split("\n")[:3]
    assert (before, after) == ("False", "False")
    assert "pip install pillow" in message


# Models that cannot be explained, and options that are not valid.


def test_models_that_attend_within_windows_or_stages_are_refused():
    swin = transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
        )
    )
    staged = transformers.PvtForImageClassification(
        transformers.PvtConfig(
            image_size=32,
            num_encoder_blocks=1,
            depths=[1],
            hidden_sizes=[8],
            num_attention_heads=[1],
        )
    )
    for model in (swin, staged):
        with pytest.raises(
            attnflow.ModelError,
            match=f"{type(model).__name__}.*ViT",
        ):
            explain(model, photo())


def test_a_model_without_cls_asks_for_a_position():
    config = transformers.SiglipVisionConfig(**SIZES)
    model = transformers.SiglipVisionModel(config).eval()
    with pytest.raises(
        attnflow.OptionError,
        match=r"SiglipVisionModel.*CLS.*0.*15.*patch",
    ):
        explain(model, photo())
    assert module.token_layout(model).special == ()


def test_a_model_that_drops_patches_is_refused():
    torch.manual_seed(0)
    model = transformers.ViTMAEModel(transformers.ViTMAEConfig(**SIZES)).eval()
    with pytest.raises(attnflow.ModelError, match=r"5 tokens.*4 x 4 patches"):
        explain(model, photo())


def test_a_model_that_cannot_take_an_images_size_says_which_it_takes():
    config = transformers.CLIPConfig(vision_config=SIZES, text_config={"hidden_size": 16})
    model = transformers.CLIPForImageClassification(config).eval()
    with pytest.raises(attnflow.ModelError, match="32 x 32"):
        explain(model, photo(), processor(size={"height": 32, "width": 48}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "attention"}, "method.*'attention'.*raw.*rollout.*flow"),
        ({"edges": "weights"}, "edges.*'weights'.*attention.*gradient"),
        ({"layer": 4}, "layer.*4.*1.*3"),
        ({"position": "mask"}, r"position.*'mask'.*auto.*cls.*\[CLS\]"),
        ({"position": "4,0"}, "position.*'4,0'.*'0,0'.*'3,3'"),
        ({"position": 17}, "position.*17"),
        ({"target": "fish"}, "target.*'fish'.*cat.*dog.*bird"),
        ({"target": 3}, "target.*3"),
        ({"heads": "median"}, "heads"),
        ({"heads": 2}, "heads"),
        ({"residual": -1}, "residual"),
        ({"receptive_field": "on"}, "receptive_field.*'on'.*'auto'.*True.*False"),
        ({"special_tokens": 1}, "special_tokens.*1"),
        ({"units": "words"}, "units.*words.*images"),
        ({"truncate": True}, "truncate.*True.*text"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_expected(models, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        explain(models["ViTForImageClassification"], photo(), **options)


def test_a_model_without_a_classifier_has_no_target_and_no_gradient(models):
    with pytest.raises(attnflow.OptionError, match=r"ViTModel.*head"):
        explain(models["ViTModel"], photo(), target=0)
    with pytest.raises(attnflow.OptionError, match="prediction"):
        explain(models["ViTModel"], photo(), edges="gradient")


def test_a_label_that_several_classes_have_is_asked_for_by_index():
    labels = {i: f"kind {i}" for i in range(30)} | {4: "crane", 9: "crane"}
    config = transformers.ViTConfig(**SIZES, id2label=labels)
    model = transformers.ViTForImageClassification(config).eval()
    with pytest.raises(attnflow.OptionError, match=r"2 classes.*4, 9"):
        explain(model, photo(), target="crane")
    with pytest.raises(attnflow.OptionError, match="crane"):
        explain(model, photo(), target="cranes")
    assert explain(model, photo(), method="raw", target=9).target == "crane"


def test_what_is_no_image_processor_is_refused(models):
    with pytest.raises(attnflow.ModelError, match=r"NoneType.*processor"):
        Explainer(models["ViTModel"], None)


def test_the_model_is_left_as_it_was_found(models):
    model = models["ViTForImageClassification"]
    expected = explain(model, photo(), edges="gradient").scores
    model.train()
    try:
        explanation = explain(model, photo(), edges="gradient")
        assert model.training
        assert model.config._attn_implementation == "sdpa"
        assert all(parameter.grad is None for parameter in model.parameters())
    finally:
        model.eval()
    np.testing.assert_array_equal(explanation.scores, expected)


# Loading.


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_loaded_for_what_it_was_saved_as(models, name, tmp_path):
    models[name].save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    kind = model_class(config)
    assert kind.__name__ == name
    model = kind.from_pretrained(tmp_path).eval()
    prepare = module.load_image_processor(tmp_path)
    found = explain(model, photo(), prepare, method="rollout")
    expected = explain(models[name], photo(), method="rollout")
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
    encoder = model_class(config, "image-encoder").from_pretrained(tmp_path)
    assert Explainer(encoder, prepare).task == "image-encoder"


def test_the_image_part_of_a_clip_model_is_loaded(tmp_path):
    text = {
        "vocab_size": 20,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = transformers.CLIPConfig(text_config=text, vision_config=SIZES)
    whole = transformers.CLIPModel(config).eval()
    whole.save_pretrained(tmp_path)
    kind = model_class(transformers.AutoConfig.from_pretrained(tmp_path))
    model = kind.from_pretrained(tmp_path).eval()
    pixels = processor()(images=[photo()], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = whole.vision_model(pixels).last_hidden_state
        np.testing.assert_allclose(model(pixels).last_hidden_state, expected, atol=1e-6)
    assert explain(model, photo(), method="raw").grid == (4, 4)


def test_a_text_model_is_no_vision_model():
    assert model_class(transformers.BertConfig(architectures=["BertModel"])) is None
    assert not ImageAdapter.fits(transformers.BertModel)


def test_a_model_is_not_loaded_for_what_it_cannot_do():
    config = transformers.ViTConfig(architectures=["ViTModel"])
    with pytest.raises(attnflow.OptionError, match=r"ViTModel.*classifier"):
        model_class(config, "image-classification")
    with pytest.raises(attnflow.OptionError, match=r"'masked-lm'.*ViTModel"):
        model_class(config, "masked-lm")


def test_a_processor_that_cuts_while_it_resizes_is_refused(models):
    prepare = transformers.ConvNextImageProcessorPil(size={"shortest_edge": 32}, crop_pct=0.5)
    with pytest.raises(attnflow.ModelError, match=r"image.*resizes"):
        explain(models["ViTModel"], photo(), prepare)


def test_a_processor_that_needs_torchvision_says_so():
    class Needs:
        do_resize = True

        def __call__(self, **options):
            raise ImportError("it requires the Torchvision library but it was not found")

    with pytest.raises(attnflow.MissingExtraError, match="pip install torchvision"):
        explain(make("ViTModel"), photo(), Needs())


# The explanation.


def test_an_explanation_of_an_image_is_stored_and_read_without_loss(models, tmp_path):
    explanation = explain(models["DeiTModel"], photo(), cropping())
    explanation.save(tmp_path / "photo.json")
    loaded = Explanation.load(tmp_path / "photo.json")
    assert loaded == explanation
    assert loaded.grid == (4, 4)
    np.testing.assert_array_equal(loaded.map("image"), explanation.map("image"))
    assert "grid=(4, 4)" in repr(loaded)


def test_explanations_stored_without_a_grid_are_read(models):
    data = explain(models["ViTModel"], photo(), method="raw").to_dict()
    del data["grid"]
    assert Explanation.from_dict(data).grid is None


def test_an_explanation_of_an_image_can_be_shown(models, capsys):
    explanation = explain(models["DeiTForImageClassification"], photo())
    explanation.show()
    assert "[DIST]" in capsys.readouterr().out
    assert "[DIST]" in explanation._repr_html_()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (4,)}, r"grid.*\(4,\)"),
        ({"grid": (0, 4)}, r"grid.*\(0, 4\)"),
        ({"grid": "4x4"}, "grid"),
        ({"grid": (4, 3)}, r"tokens\[4\].*'0,3'.*\(4, 3\)"),
        ({"tokens": ["0,0"] * 17}, r"tokens\[2\].*'0,0'"),
    ],
)
def test_a_grid_that_the_tokens_do_not_fit_is_named(models, changes, message):
    data = explain(models["ViTModel"], photo(), method="raw").to_dict()
    with pytest.raises(attnflow.OptionError, match=message):
        Explanation.from_dict(data | changes)


def test_maps_are_for_images_and_words_for_texts(models):
    explanation = explain(models["ViTModel"], photo(), method="raw")
    with pytest.raises(attnflow.OptionError, match=r"units.*'words'.*image"):
        explanation.by_unit("words")
    text = Explanation.from_dict({**explanation.to_dict(), "grid": None})
    with pytest.raises(attnflow.OptionError, match="text"):
        text.map()
    for size, message in [
        ((3,), r"size.*\(3,\)"),
        ((3, 0), r"size.*\(3, 0\)"),
        ("large", r"size.*'large'.*\(height, width\).*'image'.*None"),
    ]:
        with pytest.raises(attnflow.OptionError, match=message):
            explanation.map(size)
    with pytest.raises(attnflow.OptionError, match=r"interpolation.*'cubic'.*bilinear"):
        explanation.map((4, 4), interpolation="cubic")
    for options, message in [
        ({}, "size"),
        ({"image_size": [4, 4], "area": [0, 0, 0, 1]}, "area"),
        ({"image_size": [4, 4], "area": [0, 0, 1]}, "area"),
    ]:
        other = Explanation.from_dict({**explanation.to_dict(), "options": options})
        with pytest.raises(attnflow.OptionError, match=message):
            other.map("image")
    np.testing.assert_array_equal(other.map(), explanation.map())
