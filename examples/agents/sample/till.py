"""A till: what a basket costs."""


def total(prices: list[float], discount_percent: float = 0) -> float:
    """The sum of the prices, less the discount."""
    return sum(prices) * (1 - discount_percent)


def average(prices: list[float]) -> float:
    """What a piece costs on average."""
    return sum(prices) / len(prices)
