"""Models of transformers, peft and timm, small and with random weights, against dense derivatives."""

import warnings

import pytest
import torch
from torch import nn

import bitbayes as bb
import head_reference
from bitbayes.errors import DataError, FileError, ModelError
from with_timm import import_timm

pytestmark = pytest.mark.filterwarnings("ignore")  # of these libraries: they are not ours to mend

SIZES = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_labels": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = torch.randint(3, 40, (6, 5), generator=torch.Generator().manual_seed(0))
IDS[0, 3:] = IDS[1, 4:] = 0
BATCH = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
Y = torch.arange(6) % 3


def imported(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed: `make test` installs it")


@pytest.fixture(scope="module")
def transformers():
    return imported("transformers")


@pytest.fixture(scope="module")
def peft(transformers):
    return imported("peft")


@pytest.fixture(scope="module")
def timm():
    return import_timm()


def make(transformers, name, kind, **options):
    """A model in float64, by the name of its family and what it is for."""
    sizes = SIZES | options
    if name == "GPT2":
        sizes = {key: value for key, value in sizes.items() if key[:3] not in ("hid", "num", "int")}
        sizes |= {"n_embd": 8, "n_layer": 1, "n_head": 2, "num_labels": 3}
    elif name != "Bert":
        sizes |= {"num_key_value_heads": 1, "head_dim": 4}
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}{kind}")(config).double().eval()


def full(model, batch, **options):
    return bb.Laplace(model, structure="full", prior_variance=2.0, residual=False, **options).fit([batch])


def by_input(output):
    return output.reshape(len(output), -1)


def by_position(output):
    return output.reshape(-1, output.shape[-1])


def by_pixel(output):
    return by_position(output.movedim(1, -1))


@pytest.mark.parametrize("name", ["GPT2", "Llama", "Qwen2", "Mistral", "Gemma"])
def test_decoders_that_score_every_token_and_pick_one(transformers, name):
    model = make(transformers, name, "ForSequenceClassification")
    bayes = full(model, {**BATCH, "labels": Y})
    head_reference.check(bayes, ["score.weight"], BATCH, by_input)
    bayes.tune([{**BATCH, "labels": Y}])
    torch.testing.assert_close(bayes(**BATCH).softmax(1), bayes.predict_proba(BATCH), rtol=0, atol=1e-12)


def test_a_reward_model_in_bfloat16(transformers):
    """One logit of eight bits: several tokens of a text have the same score, and one is the one picked."""
    model = make(transformers, "Llama", "ForSequenceClassification", num_labels=1).bfloat16()
    bayes = bb.Laplace(model, prior_variance=1.0).fit([{**BATCH, "labels": Y % 2}])
    with torch.no_grad():
        hidden = model.model(**BATCH).last_hidden_state[torch.arange(6), (IDS != 0).sum(1) - 1]
    plain = bb.Laplace(nn.Linear(8, 1, bias=False).bfloat16(), prior_variance=1.0)
    plain.model.weight.data.copy_(model.score.weight)
    plain.fit([(hidden, Y % 2)])
    assert bayes.predict_proba(BATCH).shape == (6, 2)
    # The same features; the mean comes of another product in bfloat16.
    torch.testing.assert_close(
        bayes.logits(BATCH).covariance, plain.logits(hidden).covariance, rtol=0.05, atol=1e-6
    )


def test_an_encoder(transformers):
    model = make(transformers, "Bert", "ForSequenceClassification")
    bayes = full(model, {**BATCH, "labels": Y})
    head_reference.check(bayes, ["classifier.weight", "classifier.bias"], BATCH, by_input)


def test_a_classifier_of_tokens(transformers):
    model = make(transformers, "Bert", "ForTokenClassification")
    labels = torch.where(IDS != 0, IDS % 3, -100)
    bayes = full(model, {**BATCH, "labels": labels})
    names = ["classifier.weight", "classifier.bias"]
    head_reference.check(bayes, names, BATCH, by_position, counts=(IDS != 0).flatten())
    assert bayes.predict_proba(BATCH).shape == (6, 5, 3) and bayes.score(BATCH).shape == (6, 5)
    bayes.tune([{**BATCH, "labels": labels}])
    assert bayes.evaluate([{**BATCH, "labels": labels}])["nll"] < 2
    words = bayes.score(BATCH)[IDS != 0]
    assert bayes.threshold([{**BATCH, "labels": labels}], accept=1.0) == float(words.min())


def test_a_language_model(transformers):
    """Its head is tied to the embedding, which is no part of it."""
    model = make(transformers, "GPT2", "LMHeadModel")
    following = torch.cat([IDS[:, 1:], torch.full_like(IDS[:, :1], -100)], dim=1)
    bayes = bb.Laplace(model, prior_variance=1.0).fit([{"input_ids": IDS, "labels": following}])
    probs = bayes.predict_proba({"input_ids": IDS})
    assert probs.shape == (6, 5, 40) and bayes.posterior.fitted.count == 24
    features = model.transformer(IDS).last_hidden_state[:, :-1].reshape(24, -1).detach()
    head = nn.Linear(8, 40, bias=False).double()
    head.load_state_dict({"weight": model.lm_head.weight})
    plain = bb.Laplace(head, prior_variance=1.0, residual=False).fit([(features, IDS[:, 1:].reshape(24))])
    torch.testing.assert_close(
        probs[:, :-1].reshape(24, -1), plain.predict_proba(features), rtol=0, atol=1e-9
    )
    with pytest.raises(DataError, match="the labels are the token ids themselves"):
        bayes.fit([{"input_ids": IDS, "labels": IDS}])


def test_a_language_model_that_caps_its_logits_is_refused(transformers):
    model = make(transformers, "Gemma2", "ForCausalLM")
    ids = BATCH["input_ids"]
    with pytest.raises(ModelError, match="With positions in the output the head must be linear"):
        bb.Laplace(model).fit([{"input_ids": ids, "labels": ids.roll(1, dims=1)}])


def test_segmentation(transformers):
    config = transformers.SegformerConfig(
        num_labels=3,
        hidden_sizes=[4] * 4,
        depths=[1] * 4,
        num_attention_heads=[1] * 4,
        decoder_hidden_size=5,
    )
    model = transformers.SegformerForSemanticSegmentation(config).double().eval()
    batch = {"pixel_values": torch.randn(2, 3, 32, 32, dtype=torch.float64)}
    labels = torch.randint(3, (2, 8, 8))
    labels[0, :2] = -100
    bayes = full(model, {**batch, "labels": labels})
    names = ["decode_head.classifier.weight", "decode_head.classifier.bias"]
    head_reference.check(bayes, names, batch, by_pixel, counts=(labels != -100).flatten())
    assert bayes.predict_proba(batch).shape == (2, 3, 8, 8) and bayes.score(batch).shape == (2, 8, 8)


def wrapped(peft, model, **options):
    """The model with adapters whose weights are not zero, as after training."""
    made = peft.get_peft_model(model, peft.LoraConfig(r=2, **options)).double().eval()
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return made


def test_a_head_that_peft_saves_beside_its_adapters(transformers, peft):
    model = make(transformers, "Llama", "ForSequenceClassification")
    model = wrapped(peft, model, target_modules=["q_proj"], modules_to_save=["score"])
    bayes = full(model, {**BATCH, "labels": Y})
    name = "base_model.model.score.modules_to_save.default.weight"
    head_reference.check(bayes, [name], BATCH, by_input)
    assert list(bayes.sample(2)) == [name]


@pytest.mark.parametrize("family, layer", [("Llama", "score"), ("Bert", "classifier")])
def test_a_head_with_an_adapter_of_its_own(transformers, peft, family, layer):
    model = make(transformers, family, "ForSequenceClassification")
    model = wrapped(peft, model, target_modules=[layer])
    bayes = full(model, {**BATCH, "labels": Y})
    prefix = f"base_model.model.{layer}.base_layer"
    names = [f"{prefix}.weight", f"{prefix}.bias"][: 1 + (family == "Bert")]
    head_reference.check(bayes, names, BATCH, by_input)
    assert list(bayes.sample(2)) == names
    evidence = float(bayes.log_evidence())
    merged = full(model.merge_and_unload(), {**BATCH, "labels": Y})
    assert float(merged.log_evidence()) == pytest.approx(evidence, abs=1e-6)


def test_a_switched_adapter_is_noticed(peft, tmp_path):
    """No tensor changes, and the network is another one."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    options = peft.LoraConfig(target_modules=["0"], init_lora_weights=False)
    model = peft.get_peft_model(body, options, adapter_name="french").double()
    model.add_adapter("german", options)
    model = model.double()
    x = torch.randn(12, 4).double()
    bayes = bb.Laplace(model, residual=False, prior_variance=1.0).fit([(x, torch.arange(12) % 3)])
    before = bayes.predict_proba(x)
    bayes.save(tmp_path / "french.bitbayes")
    model.set_adapter("german")
    with pytest.raises(ModelError, match="other adapters are in use"):
        bayes.predict_proba(x)
    with pytest.raises(FileError, match="other modules, shapes, dtypes or adapters"):
        bb.Laplace.load(tmp_path / "french.bitbayes", model)
    model.set_adapter("french")
    assert torch.equal(bayes.predict_proba(x), before)
    with model.disable_adapter(), pytest.raises(ModelError, match="other adapters are in use"):
        bayes.predict_proba(x)
    assert torch.equal(bb.Laplace.load(tmp_path / "french.bitbayes", model).predict_proba(x), before)


def test_draws_of_a_normed_adapter_are_refused(transformers, peft):
    model = make(transformers, "Bert", "ForSequenceClassification")
    bayes = full(wrapped(peft, model, target_modules=["classifier"], use_dora=True), {**BATCH, "labels": Y})
    assert bayes.predict_proba(BATCH).shape == (6, 3)
    with pytest.raises(ModelError, match="makes its weight of other parameters"):
        bayes.sample(1)


IMAGES = torch.randn(6, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["deit", "levit"])
def test_distilled_transformers_average_two_heads(timm, kind):
    if kind == "deit":
        sizes = {"img_size": 32, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 3}
        model = timm.create_model("deit_tiny_distilled_patch16_224", **sizes)
        names = ["head.weight", "head.bias", "head_dist.weight", "head_dist.bias"]
    else:
        kind = timm.models.levit.LevitDistilled
        model = kind(32, embed_dim=(8,), num_heads=(2,), depth=(1,), key_dim=4, num_classes=3)
        names = [f"{head}.linear.{part}" for head in ("head", "head_dist") for part in ("weight", "bias")]
    model = model.double().eval()
    for name in names:
        nn.init.normal_(model.get_parameter(name), std=0.3)
    bayes = full(model, (IMAGES, Y))
    head_reference.check(bayes, names, IMAGES, by_input)
    assert sorted(bayes.sample(1)) == sorted(names)


def test_a_head_that_is_a_convolution(timm):
    model = timm.models.resnetv2.ResNetV2(layers=(1,), channels=(128,), stem_chs=32, num_classes=3)
    model = model.double().eval()
    assert isinstance(model.head.fc, nn.Conv2d)  # as in BiT
    bayes = full(model, (IMAGES, Y))
    head_reference.check(bayes, ["head.fc.weight", "head.fc.bias"], IMAGES, by_input)
