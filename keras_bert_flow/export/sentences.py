"""Sentences for comparing an exported model with the original.

They have various lengths and contain what tokenizers differ on: accents, scripts without spaces, digits, symbols and
marks.
"""

SENTENCES = (
    "Yes.",
    "No way!",
    "It rained all night.",
    "Where did you put the keys?",
    "A fine film, if a little long.",
    "The soup was cold and the waiter did not care.",
    "Ada Lovelace was born in London in 1815.",
    "Please send the invoice to accounts@example.com by Friday.",
    "Prices rose by 3.7% in March, more than anyone had expected.",
    "I have never been so bored in my life, and I have sat through tax law.",
    "The committee will meet again on 14 May at 10:30 in room 2-117.",
    "Café, naïve, façade, jalapeño, Zoë and Ångström keep their accents here.",
    "Der Zug nach Köln fährt heute von Gleis 7 ab.",
    "Il n'y a pas de fumée sans feu, disait ma grand-mère.",
    "¿Dónde está la biblioteca? Está cerrada los lunes.",
    "Быстрая лиса перепрыгнула через ленивую собаку.",
    "我们明天早上八点在车站见面。",
    "東京タワーの高さは333メートルです。",
    "서울은 대한민국의 수도이다.",
    "القاهرة هي عاصمة مصر.",
    "आज मौसम बहुत अच्छा है।",
    "Good morning 😀 see you at 8 🚀",
    "x = f(y) + 2*z[0]; // not a sentence, but people type such things",
    "https://www.example.org/path?query=1&other=two#part",
    "“Quoted”, ‘single’, and — with dashes – of two kinds…",
    "She said that he said that they had said nothing at all.",
    "The 19th-century railway, long abandoned, is now a path for cyclists.",
    "Water boils at 100 °C (212 °F) at sea level.",
    "Antidisestablishmentarianism is a long word; pneumonoultramicroscopicsilicovolcanoconiosis is longer.",
    "The patient was given 5 mg of the drug twice a day for two weeks, without any improvement.",
    "Under the terms of this contract neither party may disclose the price to anybody else before the closing date.",
    "He opened the door, saw the mess, closed the door again, and went for a walk.",
    "Of all the restaurants in town this is the only one that I would go back to, and the only one I cannot afford.",
    "The museum holds more than 40,000 objects, of which fewer than 2,000 are on display at any time.",
    "If the battery does not charge, unplug the cable, wait for ten seconds, and try another socket before you call.",
    "Scientists have found water on the moon, though far less of it than in the driest desert on Earth.",
    "The second half of the book, in which nothing happens for two hundred pages, is by far the better one.",
    "After three extensions, two lawsuits and one change of government, the bridge was opened to traffic on Tuesday "
    "by a minister who had voted against it.",
    "The model was trained on text from the encyclopedia, evaluated on questions written by students, and compared "
    "with two baselines, neither of which had seen the questions before; on the hardest of them all three did badly.",
    "Bring a warm coat, a torch, something to eat, enough water for a day, a map of the area that is made of paper, "
    "and tell somebody who stays at home where you are going and when you intend to be back, because there is no "
    "telephone network beyond the last village and the weather on the pass can change within minutes.",
)
