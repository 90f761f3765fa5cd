"""The names of the tables and figures. The command line checks them, so this file imports no torch."""

# In the order in which `all` makes them. Those that need few trained networks come first.
NAMES = (
    "toy",
    "linear-regions",
    "bounded-logit",
    "default",
    "shift",
    "drift",
    "promises",
    "openood-trainings",
    "trade-off",
    "table2",
    "openood",
    "confidence-vs-scale",
    "rotated-mnist",
    "adversarial",
    "histograms",
    "table3",
    "table1",
    "table1-pair",
    "oe",
    "acet",
    "ece",
    "dkl",
    "held-out",
)
# The data sets that some of them are about. `all` leaves out what fetches data of its own.
ONLY_FOR: dict[str, tuple[str, ...]] = {
    "openood": ("cifar10", "cifar100"),
    "openood-trainings": ("cifar10", "cifar100"),
    "rotated-mnist": ("digits", "mnist"),
    "table1-pair": ("digits", "mnist", "cifar100"),  # elsewhere the pairs are the same
    "drift": (),
    "held-out": (),
}

# The slow methods that `shift` can leave out.
SLOW = ("laplace-torch", "default-all", "dropout", "swag")


def all_names(train: str) -> list[str]:
    """Return the names of all tables and figures that there are for a data set.

    >>> "rotated-mnist" in all_names("mnist"), "rotated-mnist" in all_names("svhn")
    (True, False)
    """
    return [name for name in NAMES if train in ONLY_FOR.get(name, (train,))]
