"""The sentences of the demo: nine subjects, four sentences each, of varied length."""

SENTENCES = (
    # weather
    "Heavy rain is expected along the coast until Thursday morning.",
    "The forecast promises a wet week by the sea.",
    "A dry, sunny weekend lies ahead for the whole region.",
    "Fog closed the airport for three hours at dawn.",
    # cooking
    "Simmer the onions in butter until they turn golden.",
    "Fry the chopped onion slowly until it is soft and brown.",
    "Let the bread dough rise for an hour in a warm place.",
    "Season the soup with salt, pepper and a little lemon juice.",
    # medicine
    "The patient was given antibiotics for a lung infection.",
    "Pneumonia is usually treated with a course of antibiotics.",
    "A vaccine trains the immune system without causing the disease.",
    "Regular exercise lowers the risk of heart disease.",
    # finance
    "The central bank raised interest rates by a quarter of a percent.",
    "Borrowing became more expensive after the rate increase.",
    "Shares fell sharply when the company missed its profit target.",
    "She moved her savings into a pension fund.",
    # space
    "The probe entered orbit around Mars after a seven-month flight.",
    "A spacecraft has reached the red planet.",
    "Astronomers photographed the shadow of a black hole.",
    "The moon's gravity causes the tides of the oceans.",
    # computing
    "The program crashed because it read past the end of an array.",
    "An out-of-bounds access made the application stop.",
    "Compile the code with optimisation to make it run faster.",
    "The database was restored from last night's backup.",
    # football
    "The striker scored twice in the final ten minutes.",
    "Two late goals decided the match.",
    "The goalkeeper saved a penalty and kept the score level.",
    "Training starts at nine on the pitch behind the school.",
    # music
    "The violinist tuned her instrument before the concert.",
    "Before the performance, the string players checked their tuning.",
    "He learned to play the piano by ear as a child.",
    "The choir sang without accompaniment in the old church.",
    # animals
    "The cat slept on the warm windowsill all afternoon.",
    "A kitten dozed in the sun by the window.",
    "Wolves hunt in packs and share the care of their young.",
    "Bees tell each other where the flowers are by dancing.",
)
"""Written for this demo; the first two sentences of a subject are near paraphrases."""
