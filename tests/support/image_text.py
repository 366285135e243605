"""Tiny models of random weights that read an image with a text, and their processors."""

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.support.tiny import sharpen

WORDS = "what is in the image a cat dog on table red blue user assistant :"
MARKS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
SPECIAL = ["[PAD]", "[UNK]", "<bos>", "<eos>", "<image>", "<boi>", "<eoi>", *MARKS]
SPECIAL += ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
VOCABULARY = {word: i for i, word in enumerate([*SPECIAL, *WORDS.split(), " "])}
TEXT = {
    "vocab_size": 1280,  # PaliGemma's processor adds a thousand tokens
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} : {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE {% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)


def tokenizer(**named):
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="[UNK]",
        pad_token="[PAD]",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=SPECIAL[4:],
        **named,
    )


def square(size):
    return {"height": size, "width": size}


def llava():
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=VOCABULARY["<image>"],
        image_seq_length=16,
    )
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size=square(32), do_center_crop=True
    )
    processor = transformers.LlavaProcessor(
        images,
        tokenizer(),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
    )
    return transformers.LlavaForConditionalGeneration(config), processor


def paligemma():
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=transformers.GemmaConfig(**TEXT),
        image_token_id=VOCABULARY["<image>"],
        projection_dim=16,
    )
    images = transformers.SiglipImageProcessorPil(size=square(32))
    images.image_seq_length = 16
    processor = transformers.PaliGemmaProcessor(images, tokenizer(image_token="<image>"))
    return transformers.PaliGemmaForConditionalGeneration(config), processor


def gemma3():
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=transformers.Gemma3TextConfig(**TEXT, sliding_window=8),
        image_token_id=VOCABULARY["<image>"],
        boi_token_id=VOCABULARY["<boi>"],
        eoi_token_id=VOCABULARY["<eoi>"],
        mm_tokens_per_image=4,
    )
    words = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>")
    images = transformers.Gemma3ImageProcessorPil(size=square(32))
    processor = transformers.Gemma3Processor(
        images, words, image_seq_length=4, chat_template=TEMPLATE.replace("IMAGE", "<boi>")
    )
    return transformers.Gemma3ForConditionalGeneration(config), processor


def qwen(version="2_5_"):
    sizes = {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    heads = {"num_heads": 2, "depth": 3}
    if version == "2_5_":
        tower = {**sizes, **heads, "hidden_size": 16, "out_hidden_size": 16, "window_size": 16}
        tower |= {"intermediate_size": 24, "fullatt_block_indexes": [2]}
    else:
        tower = {**sizes, **heads, "embed_dim": 16, "hidden_size": 16, "mlp_ratio": 2}
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    kind = f"Qwen{version}VL"
    config = getattr(transformers, f"{kind}Config")(
        vision_config=tower,
        text_config={**TEXT, "rope_parameters": rope},
        image_token_id=VOCABULARY["<|image_pad|>"],
        video_token_id=VOCABULARY["<|video_pad|>"],
        vision_start_token_id=VOCABULARY["<|vision_start|>"],
        vision_end_token_id=VOCABULARY["<|vision_end|>"],
    )
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 1024, "longest_edge": 2048},
    )
    template = TEMPLATE.replace("IMAGE", "<|vision_start|> <|image_pad|> <|vision_end|>")
    # Its video processor needs torchvision, and no test has a video.
    processor = object.__new__(getattr(transformers, f"{kind}Processor"))
    vars(processor).update(
        image_processor=images,
        tokenizer=tokenizer(),
        image_token="<|image_pad|>",
        image_token_id=VOCABULARY["<|image_pad|>"],
        video_token="<|video_pad|>",
        video_token_id=VOCABULARY["<|video_pad|>"],
        chat_template=template,
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config), processor


def idefics3(kind="Idefics3", splitting=False):
    config = getattr(transformers, f"{kind}Config")(
        vision_config=VISION,
        text_config={**TEXT, "model_type": "llama"},
        image_token_id=VOCABULARY["<image>"],
        scale_factor=2,
        pad_token_id=0,
    )
    images = getattr(transformers, f"{kind}ImageProcessorPil")(
        size={"longest_edge": 64 if splitting else 32},
        max_image_size={"longest_edge": 32},
        do_image_splitting=splitting,
    )
    words = tokenizer(
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
        end_of_utterance_token="<end_of_utterance>",
    )
    processor = transformers.Idefics3Processor(
        images, words, image_seq_len=4, chat_template=TEMPLATE.replace("IMAGE", "<image>")
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config), processor


FAMILIES = {
    "LLaVA": llava,
    "PaliGemma": paligemma,
    "Gemma 3": gemma3,
    "Qwen2-VL": lambda: qwen("2"),
    "Qwen2.5-VL": qwen,
    "Idefics3": idefics3,
    "SmolVLM": lambda: idefics3("SmolVLM"),
}


def build(name, scale=0.4):
    """A tiny model of a family, in eval mode, and its processor."""
    torch.manual_seed(0)
    model, processor = FAMILIES[name]()
    return sharpen(model, scale), processor


def photo(height=32, width=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def similarity(kind="CLIP"):
    """A tiny CLIP or SigLIP, and its processor."""
    own = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    text = {name: TEXT[name] for name in own}
    text |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": 12, "projection_size": 16}
    text |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=VISION, projection_dim=16
    )
    model = sharpen(getattr(transformers, f"{kind}Model")(config))
    words = tokenizer()
    ends = [("<eos>", VOCABULARY["<eos>"]), ("<bos>", VOCABULARY["<bos>"])]
    words.backend_tokenizer.post_processor = processors.BertProcessing(*ends)
    images = getattr(transformers, f"{kind}ImageProcessorPil")(
        size=square(32), crop_size=square(32)
    )
    if kind == "Siglip":
        images = transformers.SiglipImageProcessorPil(size=square(32))
    return model, getattr(transformers, f"{kind}Processor")(images, words)
