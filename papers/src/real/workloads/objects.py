"""objects.py N: a dict of N small objects; reads, updates and replacements; prints what it saw.

Three of four choices fall on an eighth of the objects, which lie anywhere.
"""

import random
import sys


class Customer:
    """A customer with some orders."""

    def __init__(self, number, dice):
        self.number = number
        self.name = "customer %d of %d" % (number, dice.getrandbits(40))
        self.balance = dice.getrandbits(30)
        self.orders = [dice.getrandbits(32) for _ in range(dice.randrange(1, 8))]
        self.tags = {"city": "city %d" % dice.randrange(500), "level": dice.randrange(5)}


def main():
    """Fills, works, sums up."""
    count = int(sys.argv[1])
    dice = random.Random(1)
    customers = {"id:%08d" % i: Customer(i, dice) for i in range(count)}
    names = list(customers)
    dice.shuffle(names)
    seen = 0
    for turn in range(3 * count):
        below = count // 8 if dice.getrandbits(2) else count
        name = names[int(dice.random() * below)]
        customer = customers[name]
        seen = (seen * 31 + customer.balance + len(customer.orders)) % (1 << 61)
        if turn % 8 == 0:
            customer.orders.append(turn)
        elif turn % 32 == 1:
            customers[name] = Customer(customer.number, dice)
    orders = sum(sum(customer.orders) for customer in customers.values())
    print(count, seen, orders)


main()
