"""The private copy of a model: other modules, the same tensors, the same outputs as in eval mode."""

import functools
import types
import weakref
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bitbayes as bb
from bitbayes.errors import ModelError
from bitbayes.model import SideEffects, call, private_copy
from bitbayes.model.running import private_copy as running_copy
from bitbayes.model.running.calls import call_hooks


class Body(nn.Module):
    """A linear layer and dropout, which shows whether it runs in eval mode."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(3, 3), nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.linear(x))


class InAList(nn.Module):
    """It calls its children through a list, a dict and a tuple of its own."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = Body(), Body(), Body()
        self.blocks = [self.one, {"two": self.two, "rest": (self.three,)}]

    def forward(self, x):
        first, others = self.blocks
        return others["rest"][0](others["two"](first(x)))


class Holder(nn.Module):
    """It calls a module that it holds in a list, and that is not its child."""

    def __init__(self, module):
        super().__init__()
        self.held = [module]

    def forward(self, x):
        return self.held[0](x)


class RegisteredLater(nn.Module):
    """Its first child calls the second."""

    def __init__(self):
        super().__init__()
        body = Body()
        self.first, self.second = Holder(body), body

    def forward(self, x):
        return self.first(x)


def with_forward(replace):
    model = nn.Sequential(Body(), Body())
    replace(model[0])
    return model


def as_method(body):
    body.forward = types.MethodType(lambda self, x: 2 * self.dropout(self.linear(x)), body)


def as_partial(body):
    body.forward = functools.partial(Body.forward, body)


def as_closure(body):
    before = body.forward

    def doubled(x, *, factor=2):
        return factor * before(x)

    body.forward = doubled


def with_forward_of_a_torch_layer():
    model = nn.Sequential(Body(), nn.Linear(3, 3))
    before = model[1].forward
    model[1].forward = lambda x: 2 * before(x)
    return model


def as_default(body):
    def forward(x, body=body):
        return Body.forward(body, x)

    body.forward = forward


class Tap(nn.Module):
    """It takes its features from a hook, which is a method."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(Body(), nn.ReLU(), nn.Linear(3, 3)), nn.Linear(3, 2)
        self.body[1].register_forward_hook(self.keep)

    def keep(self, module, args, output):
        self.features = output

    def forward(self, x):
        self.body(x)
        return self.head(self.features)


class Plain:
    """An object that is no module, and holds one."""

    def __init__(self, body):
        self.body = body


Pair = namedtuple("Pair", "one two")


class HeldBy(nn.Module):
    """It calls its child through something that holds it."""

    def __init__(self, hold, get):
        super().__init__()
        self.body = Body()
        self.held, self.get = hold(self.body), get

    def forward(self, x):
        return self.get(self.held)(x)


def holding_itself(body):
    held = {"body": body}
    held["itself"] = [held]
    return held


class Slotted(nn.Module):
    __slots__ = ("factor",)

    def __init__(self):
        super().__init__()
        self.body = Body()
        object.__setattr__(self, "factor", 3.0)

    def forward(self, x):
        return self.factor * self.body(x)


class Closing(nn.Module):
    """Its end removes a hook, without which its output is another."""

    def __init__(self):
        super().__init__()
        self.body = Body()
        self.hook = self.body.register_forward_hook(lambda module, args, output: 2 * output)

    def forward(self, x):
        return self.body(x)

    def __del__(self):
        self.hook.remove()


class WithHook(nn.Module):
    """A hook that looks which module it is called for."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Body(), Body()
        for body in (self.one, self.two):
            body.register_forward_hook(self.double)

    def double(self, module, args, output):
        return 2 * output if module is self.one else output

    def forward(self, x):
        return self.two(self.one(x))


def as_unfinished_closure(body):
    before = body.forward

    def forward(x):
        return before(x) if x is not None else never

    body.forward = forward
    if body is None:
        never = 0  # so that the cell of `never` stays empty


def compiled_inside():
    return nn.Sequential(torch.compile(Body(), backend="eager"), nn.Linear(3, 2))


def compiled_in_place():
    model = nn.Sequential(Body(), nn.Linear(3, 2))
    model[0].compile(backend="eager")
    return model


def shared():
    body = Body()
    return nn.Sequential(body, nn.ReLU(), body)


MODELS = {
    "plain": lambda: nn.Sequential(Body(), nn.BatchNorm1d(3), nn.Linear(3, 2)),
    "in a list": InAList,
    "registered later": RegisteredLater,
    "method": lambda: with_forward(as_method),
    "partial": lambda: with_forward(as_partial),
    "closure": lambda: with_forward(as_closure),
    "closure with an empty cell": lambda: with_forward(as_unfinished_closure),
    "closure in a layer of torch": with_forward_of_a_torch_layer,
    "default argument": lambda: with_forward(as_default),
    "hook with features": Tap,
    "hook of one module": WithHook,
    "ordered dict": lambda: HeldBy(lambda body: OrderedDict(body=body), lambda held: held["body"]),
    "dict of keys": lambda: HeldBy(lambda body: {body: 1}, lambda held: next(iter(held))),
    "set": lambda: HeldBy(lambda body: {body}, lambda held: next(iter(held))),
    "named tuple": lambda: HeldBy(lambda body: Pair(1, body), lambda held: held.two),
    "weak reference": lambda: HeldBy(weakref.ref, lambda held: held()),
    "object": lambda: HeldBy(Plain, lambda held: held.body),
    "itself": lambda: HeldBy(holding_itself, lambda held: held["body"]),
    "slots": Slotted,
    "finaliser": Closing,
    "compiled inside": compiled_inside,
    "compiled in place": compiled_in_place,
    "shared": shared,
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), Body()),
}
if not torch.cuda.is_available():  # it would move its network there
    MODELS["data parallel"] = lambda: nn.Sequential(nn.DataParallel(Body()), nn.Linear(3, 2))


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_is_in_eval_mode_and_the_model_is_not_changed(name):
    torch.manual_seed(0)
    model, x = MODELS[name](), torch.randn(8, 3)
    expected = model.eval()(x).detach()
    model.train()
    before = snapshot(model)
    copy = private_copy(model)
    assert torch.equal(copy(x), expected) and torch.equal(copy(x), expected)
    assert snapshot(model) == before
    assert [name for name, _ in copy.named_modules()] == [name for name, _ in model.named_modules()]
    own, theirs = dict(model.named_parameters()), dict(copy.named_parameters())
    assert own.keys() == theirs.keys() and all(own[name] is theirs[name] for name in own)


@pytest.mark.parametrize("name", MODELS)
def test_hooks_and_other_parameters_stay_on_the_copy(name):
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.randn(8, 3)
    expected, before = model(x), snapshot(model)
    copy, called = private_copy(model), []
    others = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    with call_hooks(dict(copy.named_modules()), lambda *call: called.append(call[0])):
        found = functional_call(copy, others, (x,))
        assert not found.nan_to_num().any()  # of zeros alone: 0, or 0/0 in a weight norm
        assert snapshot(model) == before
        count = len(called)
        assert torch.equal(model(x), expected) and len(called) == count  # the model calls no hook
    linear = {key for key, module in copy.named_modules() if isinstance(module, nn.Linear)}
    assert linear and linear <= set(called)


def snapshot(model):
    """All that a run could leave behind: modes, hooks, and the objects and versions of all tensors."""
    tables = [
        (module.training, *(id(each) for each in (*module._parameters.values(), *module._buffers.values())))
        for module in model.modules()
    ]
    hooks = [
        (len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks))
        for module in model.modules()
    ]
    tensors = (*model.parameters(), *model.buffers())
    return tables, hooks, [(each._version, each.requires_grad, each.grad) for each in tensors]


def test_a_users_hooks_are_called():
    model, calls = nn.Sequential(nn.Linear(2, 2)), []
    model[0].register_forward_hook(lambda module, args, output: calls.append(1))
    private_copy(model)(torch.zeros(1, 2))
    assert calls == [1]


def test_modules_that_are_not_registered_keep_their_mode():
    """`model.eval()` does not reach them either."""
    dropout = nn.Dropout()
    copy = private_copy(Holder(dropout).eval())
    assert copy.held[0].training and copy.held[0] is not dropout


@pytest.mark.parametrize(
    "held",
    [
        [Plain(3)],
        (Plain(3), "a"),
        {"log": Plain([1, 2])},
        Plain(Plain(3)),
        functools.partial(print, Plain(3)),
        lambda x, log=Plain(3): log,  # noqa: B008
    ],
    ids=["list", "tuple", "dict", "object", "partial", "function"],
)
def test_what_holds_no_module_is_shared(held):
    """A model that counts its calls in an object of its own, say, goes on to count in that one."""
    model = Body()
    model.held = held
    assert private_copy(model).held is held


def test_a_child_that_appears_twice_has_one_copy():
    copy = private_copy(shared())
    assert copy[0] is copy[2]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_part_in_training_mode_is_refused():
    model = nn.Sequential(torch.jit.script(nn.Dropout()), nn.Linear(2, 2))
    with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
        private_copy(model)
    x = torch.randn(5, 2)
    assert torch.equal(private_copy(model.eval())(x), model(x))


def test_recurrent_networks_share_no_list_of_weights():
    """Setting a weight of an LSTM writes into a list that its forward reads."""
    model = nn.LSTM(3, 4)
    kept = list(model._flat_weights)
    copy = private_copy(model)
    copy.weight_hh_l0 = nn.Parameter(torch.zeros(16, 4))
    assert all(a is b for a, b in zip(kept, model._flat_weights, strict=True))
    assert not copy._flat_weights[1].any()


class ThroughAGlobal(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Body(), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(GLOBAL[0].body(x))


GLOBAL = []


@pytest.mark.parametrize("layers", ["last", "all"])
def test_parts_that_cannot_be_copied_are_refused(layers):
    GLOBAL[:] = [ThroughAGlobal()]
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    with pytest.raises(ModelError, match=r"calls its part 'body'.*self\.NAME"):
        bb.Laplace(GLOBAL[0], layers=layers).fit([(x, y)])


class Drawing(nn.Module):
    """It writes to a buffer, which an attribute of its own also holds, and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.same = [self.calls]

    def forward(self, x):
        self.same[0] += 1
        return x + torch.rand(len(x), 1) + 0 * self.calls


def test_buffers_that_change_and_random_numbers_are_the_copys_own():
    model, x = Drawing(), torch.zeros(3, 2)
    copy = private_copy(model, SideEffects.any_of(model))
    state = torch.get_rng_state()
    first, second = call(copy, x), call(copy, x)
    assert torch.equal(torch.get_rng_state(), state) and model.calls == 0 and copy.calls == 2
    assert copy.same[0] is copy.calls
    assert not torch.equal(first, second)
    assert torch.equal(call(private_copy(model, SideEffects(("calls",), random=True)), x), first)


def test_large_buffers_are_shared(monkeypatch):
    monkeypatch.setattr(running_copy, "MAX_COPIED_BYTES", 8)
    model = nn.Module()
    model.register_buffer("large", torch.zeros(2))
    model.register_buffer("small", torch.zeros(1))
    assert SideEffects.any_of(model).buffers == ("small",)
