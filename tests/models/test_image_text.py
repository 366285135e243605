"""Models that read an image with a text, on tiny models of random weights and on a trained one."""

import io

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import processors

import attnflow
from attnflow import importance
from attnflow.capture import contribute, locate
from attnflow.errors import ImageError
from attnflow.models import Explainer
from attnflow.models.adapter import Question
from attnflow.models.answers import ask
from tests.support.architectures import randomised, state_of, unusual
from tests.support.image_text import (
    FAMILIES,
    TEXT,
    VISION,
    VOCABULARY,
    build,
    idefics3,
    llava,
    photo,
)
from tests.support.tiny import sharpen

# PaliGemma's processor does this with tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

QUESTION = "what is in the image"
ITEM = (photo(), QUESTION)


@pytest.fixture(scope="module", params=FAMILIES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def explainer(name):
    model, processor = build(name)
    return Explainer(randomised(model), processor)


@pytest.fixture(scope="module")
def small():
    model, processor = build("LLaVA")
    return Explainer(randomised(model), processor)


def inputs_of(explainer, item=ITEM):
    """What the model is given, as a batch of one."""
    encoded = explainer.adapter.read(item)
    return explainer.adapter.stacked([encoded], [[len(encoded.tokens) - 1]])[0]


def own(explainer, item=ITEM, **options):
    """The model's own outputs, with its eager attention."""
    inputs = inputs_of(explainer, item)
    inputs.pop("logits_to_keep")
    model = explainer.model
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return model(**inputs, **options)
    finally:
        model.set_attn_implementation("sdpa")


# ---- Every family --------------------------------------------------------------------------------


def test_rows_of_the_graph_are_those_of_the_models_own_attention(explainer):
    attentions = own(explainer, output_attentions=True).attentions
    explanation = explainer.explain(ITEM, method="raw", receptive_field=False)
    last = np.stack([layer[0].mean(0)[-1].numpy() for layer in attentions])
    np.testing.assert_allclose(explanation.layer_scores, last, atol=1e-5)
    graph = explanation.trace.graph()
    for mine, theirs in zip(graph.attention, attentions, strict=True):
        np.testing.assert_allclose(mine, theirs[0].mean(0), atol=1e-5)


def test_contributions_add_up_to_the_answer_through_the_vision_tower(explainer):
    logits = own(explainer).logits[0, -1].double()
    explanation = explainer.explain(ITEM, target="cat", contrast="dog")
    expected = float(logits[VOCABULARY["cat"]] - logits[VOCABULARY["dog"]])
    assert explanation.value == pytest.approx(expected, abs=1e-4)
    assert explanation.scores.sum() + explanation.bias == pytest.approx(expected, abs=1e-4)
    assert explanation.prediction.index == int(logits.argmax())
    assert explanation.notes == ()
    assert np.abs(explanation.map()).min() > 0


def test_words_add_the_same_whether_or_not_the_image_is_followed_further(explainer):
    def score(outputs):
        logits = outputs.logits[:, -1]
        return logits[:, VOCABULARY["cat"]] - logits[:, VOCABULARY["dog"]]

    adapter = explainer.adapter
    found = contribute(explainer.model, inputs_of(explainer), score, apart=adapter.tower)
    explanation = explainer.explain(ITEM, target="cat", contrast="dog")
    words = [i for i in range(len(explanation.tokens)) if i not in explanation.patches]
    np.testing.assert_allclose(
        explanation.scores[words], found.scores[-1][0, words], rtol=1e-3, atol=1e-5
    )


def test_image_tokens_are_the_patches_in_their_order_and_words_are_words(name, explainer):
    explanation = explainer.explain(ITEM)
    rows, columns = explanation.grid
    patches = [explanation.tokens[i] for i in explanation.patches]
    assert patches == [f"{row},{column}" for row in range(rows) for column in range(columns)]
    texts = [explanation.tokens[i] for i, span in enumerate(explanation.spans) if span is not None]
    assert " ".join(QUESTION.split()) in " ".join(texts)
    for token, span in zip(explanation.tokens, explanation.spans, strict=True):
        assert span is None or explanation.text[slice(*span)].strip() == token
    assert "<image>" not in explanation.text
    words = explanation.by_unit("words")
    assert len(words.patches) == rows * columns
    np.testing.assert_allclose(words.map(), explanation.map())


def test_a_part_of_the_image_is_read_where_the_map_shows_it(explainer):
    encoded = explainer.adapter.read(ITEM)
    rows, columns = encoded.extra.grid
    top, left, bottom, right = encoded.extra.area
    for row, column in ((0, 0), (rows - 1, 0), (rows // 2, columns - 1)):
        image = photo()
        height, width = image.shape[:2]
        edges = np.array([row, row + 1]) / rows * (bottom - top) + top
        sides = np.array([column, column + 1]) / columns * (right - left) + left
        (above, below), (first, last) = np.rint(edges * height), np.rint(sides * width)
        image[int(above) : int(below), int(first) : int(last)] ^= 255
        changed = explainer.adapter.read((image, QUESTION)).inputs["pixel_values"]
        differs = changed != encoded.inputs["pixel_values"]
        cells = encoded.extra.cells.expand(changed.shape)[differs]
        assert set(cells.tolist()) == {row * columns + column}


def test_every_method_and_edge_explains_both(explainer):
    for method in ("raw", "rollout", "flow"):
        explanation = explainer.explain(ITEM, method=method)
        assert explanation.scores.min() >= 0
        assert explanation.map().shape == explanation.grid
    for edges in ("gradient", "effective"):
        assert explainer.explain(ITEM, method="rollout", edges=edges).scores.sum() > 0


def test_blank_out_replaces_words_and_paints_patches(explainer):
    explanation = explainer.explain(ITEM, target="cat", contrast="dog", check=True)
    check, adapter = explanation.check, explainer.adapter
    assert check.units == "tokens and patches"
    model, inputs = explainer.model, inputs_of(explainer)
    inputs.pop("logits_to_keep")
    picture = adapter.read(ITEM).extra
    ids = inputs["input_ids"][0].tolist()

    def value(given):
        with torch.no_grad():
            logits = model(**given).logits[0, -1]
        return float(logits[VOCABULARY["cat"]] - logits[VOCABULARY["dog"]])

    painted = inputs["pixel_values"].clone()
    painted[picture.cells.expand(painted.shape) == 1] = 0
    columns = picture.grid[1]
    patch = check.names.index(f"{1 // columns},{1 % columns}")
    effect = value(inputs) - value({**inputs, "pixel_values": painted})
    assert check.effects[patch] == pytest.approx(effect, abs=1e-4)
    replaced = inputs["input_ids"].clone()
    replaced[0, ids.index(VOCABULARY["what"])] = VOCABULARY[" "]
    effect = value(inputs) - value({**inputs, "input_ids": replaced})
    assert check.effects[check.names.index("what")] == pytest.approx(effect, abs=1e-4)


def test_every_token_that_it_writes_is_explained(explainer):
    found = explainer.generate(ITEM, max_new_tokens=3)
    inputs = inputs_of(explainer)
    inputs.pop("logits_to_keep")
    with torch.no_grad():
        whole = explainer.model.generate(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=3,
            do_sample=False,
            pad_token_id=0,
        )
    written = whole[0, inputs["input_ids"].shape[1] :].tolist()
    explanations = getattr(found, "explanations", found)
    assert [one.prediction.index for one in explanations] == written
    for one in explanations:
        assert one.scores.sum() + one.bias == pytest.approx(one.value, abs=1e-4)
        assert len(one.patches) == one.grid[0] * one.grid[1]


def test_the_model_is_left_as_it_was_found(name):
    model, processor = build(name)
    explainer = Explainer(unusual(model), processor)
    before = state_of(model)
    explainer.explain(ITEM)
    explainer.explain(ITEM, method="rollout")
    assert state_of(model) == before


# ---- Where patches are ---------------------------------------------------------------------------


def located(explainer):
    encoded, adapter = explainer.adapter.read(ITEM), explainer.adapter
    inputs = inputs_of(explainer)
    image = inputs["input_ids"][0] == adapter.image_token
    found = locate(explainer.model, inputs, adapter.tower, encoded.extra.cells, image)
    return found.tolist(), encoded.extra.grid


def test_the_positions_of_a_tower_are_found(name, explainer):
    found, (rows, columns) = located(explainer)
    if name == "LLaVA":
        assert found == [-1, *range(16)]
    elif name == "PaliGemma":
        assert found == list(range(16))
    elif name in ("Gemma 3", "Idefics3", "SmolVLM"):
        assert found == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3]
    else:
        cells = np.arange(rows * columns).repeat(4)
        if name == "Qwen2.5-VL":
            # Windows of 16 x 16 pixels are 2 x 2 tokens, one window after the other.
            grid = np.arange(rows * columns).reshape(rows // 2, 2, columns // 2, 2)
            cells = grid.transpose(0, 2, 1, 3).ravel().repeat(4)
        assert found == cells.tolist()


def test_an_image_that_is_not_square_keeps_its_shape():
    model, processor = build("Qwen2.5-VL")
    explanation = Explainer(model, processor).explain((photo(32, 64), QUESTION))
    rows, columns = explanation.grid
    assert columns == 2 * rows
    assert explanation.map("image").shape == (32, 64)


def test_tokens_that_stand_for_no_place_are_refused():
    model, processor = build("LLaVA")
    model.model.multi_modal_projector.forward = lambda features: features.flip(1)
    with pytest.raises(attnflow.ModelError, match=r"LlavaForConditionalGeneration mixes.*place"):
        Explainer(model, processor).explain(ITEM)


def test_a_resampler_between_tower_and_decoder_is_refused():
    config = transformers.Blip2Config(
        vision_config=VISION,
        qformer_config={
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "encoder_hidden_size": 16,
            "vocab_size": 40,
        },
        text_config={**TEXT, "model_type": "llama"},
        num_query_tokens=4,
        image_token_index=VOCABULARY["<image>"],
    )
    model = sharpen(transformers.Blip2ForConditionalGeneration(config))
    _, processor = llava()
    with pytest.raises(attnflow.ModelError, match=r"Blip2ForConditionalGeneration"):
        Explainer(model, processor).explain((photo(), "<image> what"))


def test_an_image_that_is_cut_into_several_is_refused():
    model, processor = idefics3(splitting=True)
    with pytest.raises(attnflow.ModelError, match=r"images of their own.*do_image_splitting"):
        Explainer(sharpen(model), processor).explain((photo(64, 64), QUESTION))


def test_a_model_that_does_not_read_an_image_as_tokens_is_refused():
    text = {name: TEXT[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    text |= {"num_attention_heads": 2, "intermediate_size": 16, "encoder_hidden_size": 16}
    config = transformers.BlipConfig(text_config=text, vision_config=VISION)
    model = transformers.BlipForConditionalGeneration(config)
    with pytest.raises(attnflow.ModelError, match=r"BlipForConditionalGeneration.*tokens"):
        Explainer(model, llava()[1])


@pytest.mark.parametrize("item", [ITEM, photo()])
def test_models_that_join_image_and_text_otherwise_say_so(item):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": len(VOCABULARY), "intermediate_size": 16}
    vilt = transformers.ViltConfig(**sizes, image_size=8, patch_size=4)
    text = {**sizes, "encoder_hidden_size": 16}
    blip = transformers.BlipConfig(text_config=text, vision_config=VISION)
    for model in (
        transformers.ViltForQuestionAnswering(vilt),
        transformers.BlipForImageTextRetrieval(blip),
    ):
        with pytest.raises(attnflow.TextError, match=f"{type(model).__name__} does not.*tokens"):
            Explainer(model, llava()[1].tokenizer).explain(item)


def test_a_tower_whose_parts_do_not_add_up_is_explained_by_its_tokens():
    model, processor = build("LLaVA")

    class Wave(torch.nn.Module):
        def forward(self, values):
            return values.sin()

    model.model.multi_modal_projector.act = Wave()
    explanation = Explainer(model, processor).explain(ITEM, target="cat", contrast="dog")
    [note] = explanation.notes
    assert "vision tower" in note
    assert explanation.scores.sum() + explanation.bias == pytest.approx(explanation.value, abs=1e-4)


# ---- A model whose answer is known ---------------------------------------------------------------

# The answer says of which colour the patch 1,2 is, and which of two animals is named.
PLACE = (1, 2)
ANSWERS = {(0, 0): "red", (0, 1): "blue", (1, 0): "on", (1, 1): "in"}
WORDS = ("the", "a", "is", "table")


def scene(generator, colour):
    """An image of noise, of which one patch is red or blue."""
    image = generator.integers(96, 160, (32, 32, 3), dtype=np.uint8)
    row, column = PLACE
    patch = image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
    patch[:] = (230, 30, 30) if colour == 0 else (30, 30, 230)
    return image


def sentence(generator, animal):
    """A text in which a cat or a dog is named at a place of its own."""
    words = list(generator.choice(WORDS, 4))
    words.insert(2, ("cat", "dog")[animal])
    return " ".join(words)


@pytest.fixture(scope="module")
def taught():
    """A tiny LLaVA that has learnt to read one patch and one word."""
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**{**VISION, "num_hidden_layers": 1}),
        text_config=transformers.LlamaConfig(**{**TEXT, "vocab_size": len(VOCABULARY)}),
        image_token_id=VOCABULARY["<image>"],
        vision_feature_layer=-1,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    _, processor = llava()
    processor.chat_template = None
    generator = np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        known = [(int(a), int(b)) for a, b in generator.integers(0, 2, (16, 2))]
        inputs = processor(
            images=[scene(generator, colour) for colour, _ in known],
            text=[f"<image> {sentence(generator, animal)}" for _, animal in known],
            return_tensors="pt",
        )
        answers = torch.tensor([VOCABULARY[ANSWERS[one]] for one in known])
        loss = torch.nn.functional.cross_entropy(model(**inputs).logits[:, -1], answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.1
    return Explainer(model.eval(), processor)


def test_the_patch_and_the_word_that_the_answer_came_from_are_found(taught):
    # It has learnt to look for red and for "cat": without both, the rest is its guess. Blank-out
    # says so, too.
    generator = np.random.default_rng(1)
    patch = "{},{}".format(*PLACE)
    for colour, animal in [(0, 0), (0, 1), (1, 0)] * 4:
        item = (scene(generator, colour), sentence(generator, animal))
        answer, other = ANSWERS[colour, animal], ANSWERS[1 - colour, 1 - animal]
        explanation = taught.explain(item, target=answer, contrast=other, check=True)
        assert explanation.prediction.label == answer
        effects = dict(zip(explanation.check.names, explanation.check.effects, strict=True))
        assert (effects[patch] > 1) is (colour == 0)
        scores = explanation.map()
        if colour == 0:
            assert np.unravel_index(scores.argmax(), scores.shape) == PLACE
            assert scores[PLACE] > 5 * np.sort(np.abs(scores).ravel())[-2]
        texts = [i for i, span in enumerate(explanation.spans) if span is not None]
        best = max(texts, key=lambda i: explanation.scores[i])
        if animal == 0:
            assert effects["cat"] > 1
            assert explanation.tokens[best] == "cat"


# ---- What is given -------------------------------------------------------------------------------


def test_a_chat_goes_through_the_template(small):
    chat = [
        {"role": "user", "content": [{"type": "image", "image": photo()}, "what is in the image"]},
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": [{"type": "text", "text": "on the table"}]},
    ]
    explanation = small.explain(chat)
    written = "user : what is in the image assistant : a cat user : on the table assistant :"
    assert " ".join(explanation.text.split()) == written
    assert [part.name for part in explanation.segments] == ["user", "assistant", "user"]
    parts = [explanation.text[part.start : part.end] for part in explanation.segments]
    assert parts == ["what is in the image", "a cat", "on the table"]
    one = small.explain([{"role": "user", "content": [photo(), QUESTION]}])
    same = small.explain(ITEM)
    np.testing.assert_allclose(one.scores, same.scores)
    both = small.explain([chat, ITEM])
    assert [len(both), both[1]] == [2, same]


@pytest.mark.parametrize("image", [True, False])
def test_a_text_begins_with_one_bos(image):
    model, processor = build("LLaVA")
    processor.chat_template = "<bos> " + processor.chat_template
    words = processor.tokenizer
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", VOCABULARY["<bos>"])]
    )
    content = [photo(), "what is"] if image else ["what is"]
    explanation = Explainer(model, processor).explain([{"role": "user", "content": content}])
    assert explanation.tokens.count("<bos>") == 1
    assert explanation.tokens[0] == "<bos>"


def test_a_text_with_a_place_for_the_image_is_taken_as_it_is(small):
    explanation = small.explain((photo(), "what is <image> on"))
    assert explanation.tokens[:3] == ("what", "is", "0,0")
    assert explanation.tokens[-1] == "on"


def test_a_text_alone_is_explained(small):
    explanation = small.explain("what is on the table")
    assert explanation.grid is None
    assert explanation.tokens == ("what", "is", "on", "the", "table")
    assert explanation.scores.sum() + explanation.bias == pytest.approx(explanation.value, abs=1e-4)


@pytest.mark.parametrize(
    ("item", "options", "error", "said"),
    [
        (photo(), {}, ImageError, "without a text"),
        ((photo(), 3), {}, attnflow.TextError, "ndarray, int"),
        ((photo(), " "), {}, attnflow.TextError, "empty"),
        (("nowhere.png", "what"), {}, ImageError, "nowhere.png"),
        ([], {}, attnflow.TextError, "empty list"),
        (ITEM, {"truncate": True}, attnflow.OptionError, "truncate"),
        (ITEM, {"position": 99}, attnflow.OptionError, "position is 99"),
        (ITEM, {"method": "alti_logit"}, attnflow.OptionError, "alti_logit"),
        ([ITEM, (photo(), "")], {}, attnflow.TextError, "item 1"),
        ([{"role": "user", "content": [photo(), photo()]}], {}, ImageError, "2 images"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, ImageError, "1 images"),
        ([{"content": [photo(), "what"]}], {}, attnflow.TextError, "message 0 has the role None"),
        ([{"role": "user", "content": [{"type": "video"}]}], {}, attnflow.TextError, "'video'"),
    ],
)
def test_what_cannot_be_explained_is_refused(small, item, options, error, said):
    with pytest.raises(error, match=said):
        small.explain(item, **options)


def test_a_chat_needs_a_template():
    model, processor = build("PaliGemma")
    with pytest.raises(attnflow.ModelError, match=r"chat template.*<image>"):
        Explainer(model, processor).explain([{"role": "user", "content": [photo(), "what"]}])


def test_an_image_needs_a_processor():
    model, processor = build("LLaVA")
    explainer = Explainer(model, processor.tokenizer)
    assert explainer.explain("what is on the table").grid is None
    with pytest.raises(attnflow.ModelError, match=r"prepares no images.*processor"):
        explainer.explain(ITEM)


def test_gradients_of_embeddings_are_refused(small):
    with pytest.raises(attnflow.ModelError, match="blank_out"):
        importance.gradient_x_input(small, ITEM)


def test_a_reference_reads_both(small):
    found = importance.blank_out(small, ITEM)
    explanation = small.explain(ITEM)
    assert found.shape == (len(explanation.tokens),)
    assert found[list(explanation.patches)].min() > 0


def test_answers_of_a_batch_are_those_of_each_alone(small):
    adapter = small.adapter
    encoded = adapter.read(ITEM)
    [reading] = adapter.readings([encoded], [Question("auto", 20)], False)
    fill = adapter.fill("auto")
    changed = [adapter.replaced(reading, [token], fill) for token in range(len(encoded.tokens))]
    together = ask(small, [reading, *changed], 64)
    alone = [ask(small, [one], 1)[0] for one in (reading, *changed)]
    np.testing.assert_allclose(
        [one.value for one in together], [one.value for one in alone], atol=1e-4
    )


# ---- What becomes of it --------------------------------------------------------------------------


def test_an_explanation_is_saved_and_shown_with_image_and_text(small, tmp_path):
    explanation = small.explain((photo(40, 60), QUESTION), target="cat", contrast="dog")
    path = tmp_path / "both.json"
    explanation.save(path)
    loaded = attnflow.Explanation.load(path)
    assert loaded == explanation
    assert loaded.picture == explanation.picture
    assert Image.open(io.BytesIO(loaded.picture)).size[0] > 0
    np.testing.assert_array_equal(loaded.map("image"), explanation.map("image"))
    stream = io.StringIO()
    explanation.show(stream)
    said = stream.getvalue()
    assert "patches" in said
    assert "what is in the image" in " ".join(said.split())
    figure, _ = explanation.plot()
    assert len(figure.axes) == 3  # patches, their scale, and the text beside them
    page = explanation.to_html()
    assert '"patches": [' in page or '"patches":[' in page


def test_a_checkpoint_is_loaded_with_its_processor(tmp_path):
    model, processor = build("LLaVA")
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    explainer = Explainer.from_pretrained(tmp_path)
    assert explainer.task == "image-text-to-text"
    expected = Explainer(model, processor).explain(ITEM)
    found = explainer.explain(ITEM)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    assert found.grid == (4, 4)
