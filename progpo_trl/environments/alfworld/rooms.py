"""Tables the game generator draws from: our own rooms, and which kind of thing goes where.

The names of kinds, what a receptacle can hold and what can be cleaned, heated or cooled are facts of ALFRED's world
(https://askforalfred.com, MIT); the rooms and how often a thing occurs in them are ours.
"""

from __future__ import annotations

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# The appliance a task type needs in the room.
APPLIANCE = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}

CLOSABLE = ("Cabinet", "Drawer", "Fridge", "Microwave", "Safe")

CLEANABLE = tuple(
    "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot Potato SoapBar "
    "Spatula Spoon Tomato".split()
)
HEATABLE = tuple("Apple Bread Cup Egg Mug Plate Potato Tomato".split())
COOLABLE = tuple("Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle".split())
SLICEABLE = tuple("Apple Bread Egg Lettuce Potato Tomato".split())
CONTAINERS = tuple("Bowl Box Cup Mug Pan Plate Pot".split())

# receptacle kind -> object kinds it can hold
ACCEPTS: dict[str, tuple[str, ...]] = {
    kind: tuple(objects.split())
    for kind, objects in {
        "ArmChair": "Book Box CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "BathtubBasin": "Cloth DishSponge HandTowel SoapBar",
        "Bed": "BasketBall Book CellPhone Laptop Pillow",
        "Cabinet": "Book Bowl Box CD Candle Cloth Cup DishSponge HandTowel Kettle Ladle Mug Newspaper Pan "
        "PepperShaker Plate Pot SaltShaker SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Vase WateringCan "
        "WineBottle",
        "Cart": "Candle Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
        "CoffeeMachine": "Mug",
        "CoffeeTable": "Book Bowl Box Candle CellPhone CreditCard KeyChain Laptop Newspaper Pen Pencil Plate "
        "RemoteControl Statue TissueBox Vase Watch WateringCan",
        "CounterTop": "AlarmClock Apple Book Bowl Bread ButterKnife CD Candle CellPhone Cloth CreditCard Cup "
        "DishSponge Egg Fork HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug Pan Pen Pencil PepperShaker "
        "Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle Statue TissueBox "
        "ToiletPaper Tomato Vase WineBottle",
        "Desk": "AlarmClock BasketBall Book Bowl Box CD CellPhone Cloth CreditCard KeyChain Laptop Mug Pen Pencil "
        "RemoteControl Statue TissueBox Vase Watch",
        "DiningTable": "AlarmClock Apple BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth "
        "CreditCard Cup DishSponge Egg Fork Kettle KeyChain Knife Ladle Laptop Lettuce Mug Newspaper Pan Pen Pencil "
        "PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBottle Spatula Spoon SprayBottle Statue "
        "TissueBox Tomato Vase Watch WateringCan WineBottle",
        "Drawer": "Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Fork HandTowel KeyChain Knife "
        "Ladle Newspaper Pen Pencil PepperShaker RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon "
        "SprayBottle TissueBox ToiletPaper Watch WateringCan",
        "Dresser": "AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard KeyChain Laptop Mug "
        "Newspaper Pen Pencil Plate RemoteControl SprayBottle Statue TissueBox ToiletPaper Vase Watch WateringCan",
        "Fridge": "Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle",
        "GarbageCan": "Apple Bread CD Cloth DishSponge Egg HandTowel Lettuce Newspaper Pen Pencil Potato SoapBar "
        "SoapBottle SprayBottle TissueBox ToiletPaper Tomato WineBottle",
        "HandTowelHolder": "HandTowel",
        "LaundryHamper": "Cloth",
        "Microwave": "Apple Bowl Bread Cup Egg Mug Plate Potato Tomato",
        "Ottoman": "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "Safe": "CD CellPhone CreditCard KeyChain",
        "Shelf": "AlarmClock Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup DishSponge HandTowel Kettle "
        "KeyChain Mug Newspaper Pen Pencil PepperShaker Plate Pot RemoteControl SaltShaker SoapBar SoapBottle "
        "SprayBottle Statue TissueBox ToiletPaper Vase Watch WateringCan WineBottle",
        "SideTable": "AlarmClock Apple BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth "
        "CreditCard Cup DishSponge Egg Fork HandTowel Kettle KeyChain Knife Laptop Lettuce Mug Newspaper Pan Pen "
        "Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle "
        "Statue TissueBox ToiletPaper Tomato Vase Watch WateringCan WineBottle",
        "SinkBasin": "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork HandTowel Kettle Knife Ladle Lettuce Mug "
        "Pan Plate Pot Potato SoapBar Spatula Spoon Tomato",
        "Sofa": "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "StoveBurner": "Kettle Pan Pot",
        "Toilet": "Candle Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
        "ToiletPaperHanger": "ToiletPaper",
    }.items()
}

# room -> (receptacle kind, how many a room with repeated kinds has at most)
RECEPTACLES: dict[str, tuple[tuple[str, int], ...]] = {
    "kitchen": (
        ("Cabinet", 8), ("Drawer", 6), ("Fridge", 1), ("Microwave", 1), ("CounterTop", 3), ("SinkBasin", 1),
        ("DiningTable", 1), ("StoveBurner", 4), ("CoffeeMachine", 1), ("Shelf", 3), ("SideTable", 1),
        ("GarbageCan", 1),
    ),
    "living": (
        ("Cabinet", 3), ("Drawer", 6), ("Safe", 1), ("Sofa", 1), ("ArmChair", 2), ("Ottoman", 1), ("CoffeeTable", 1),
        ("SideTable", 3), ("DiningTable", 1), ("Dresser", 1), ("Desk", 1), ("Shelf", 4), ("GarbageCan", 1),
    ),
    "bedroom": (
        ("Cabinet", 2), ("Drawer", 7), ("Safe", 1), ("Bed", 1), ("ArmChair", 2), ("Desk", 2), ("Dresser", 1),
        ("SideTable", 2), ("CounterTop", 1), ("Shelf", 5), ("LaundryHamper", 1), ("GarbageCan", 1),
    ),
    "bathroom": (
        ("Cabinet", 6), ("Drawer", 5), ("CounterTop", 2), ("SinkBasin", 2), ("BathtubBasin", 1), ("Toilet", 1),
        ("Cart", 1), ("SideTable", 1), ("Shelf", 3), ("HandTowelHolder", 2), ("ToiletPaperHanger", 1),
        ("GarbageCan", 1),
    ),
}  # fmt: skip

OBJECTS: dict[str, tuple[str, ...]] = {
    room: tuple(objects.split())
    for room, objects in {
        "kitchen": "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan "
        "PepperShaker Plate Pot Potato SaltShaker SoapBottle Spatula Spoon Tomato WineBottle",
        "living": "Book Box Candle CreditCard KeyChain Laptop Newspaper Pen Pillow RemoteControl Statue TissueBox "
        "Vase Watch WateringCan",
        "bedroom": "AlarmClock BasketBall Book Box CD CellPhone CreditCard KeyChain Laptop Mug Pen Pencil Pillow "
        "Statue TissueBox Vase",
        "bathroom": "Candle Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
    }.items()
}

# room -> its lamp and the receptacles a lamp stands on ("look" tasks)
LAMPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "living": ("FloorLamp", ("SideTable", "CoffeeTable", "Dresser", "Desk")),
    "bedroom": ("DeskLamp", ("Desk", "SideTable", "Dresser", "Shelf")),
}


def target_kinds(task_type: str, room: str) -> tuple[str, ...]:
    """Object kinds of `room` that a task of `task_type` may be about."""
    allowed = {
        "pick_clean_then_place_in_recep": CLEANABLE,
        "pick_heat_then_place_in_recep": HEATABLE,
        "pick_cool_then_place_in_recep": COOLABLE,
    }.get(task_type, OBJECTS[room])
    return tuple(kind for kind in OBJECTS[room] if kind in allowed)


def kinds() -> tuple[str, ...]:
    """Every kind of receptacle, object and lamp there is, in the spelling of the game's text, sorted."""
    names = {*ACCEPTS, *(kind for pool in OBJECTS.values() for kind in pool), *(lamp for lamp, _ in LAMPS.values())}
    return tuple(sorted(name.lower() for name in names))
