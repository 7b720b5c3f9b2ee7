"""The words that texts are made of: common, lower-case, ASCII, most common first.

Common words are single tokens in most vocabularies, and plain ASCII needs no JSON escapes.
"""

_OPENERS = "the a in we it by for but when this every before"  # lengths 1 to 6
OPENERS: tuple[str, ...] = tuple(_OPENERS.split())
"""Words that may start a text. A first word has no space before it and may cost otherwise."""

_WORDS = """
    the of and to in a is it that for was on are as with they be at one have this from by hot but
    some what there we can out other were all your when up use word how said an each she which do
    their time if will way about many then them would write like so these her long make thing see
    him two has look more day could go come did my sound no most number who over know water than
    call first people may down side been now find any new work part take get place made live where
    after back little only round man year came show every good me give our under name very through
    just form much great think say help low line before turn cause same mean differ move right boy
    old too does tell sentence set three want air well also play small end put home read hand port
    large spell add even land here must big high such follow act why ask men change went light kind
    off need house picture try us again animal point mother world near build self earth father head
    stand own page should country found answer school grow study still learn plant cover food sun
    four thought let keep eye never last door between city tree cross since hard start might story
    saw far sea draw left late run while press close night real life few stop open seem together
    next white children begin got walk example ease paper often always music those both mark book
    letter until mile river car feet care second group carry took rain eat room friend began idea
    fish mountain north once base hear horse cut sure watch color face wood main
"""
WORDS: tuple[str, ...] = tuple(_WORDS.split())
"""Words that may follow, each with one space before it."""

CLOSERS: tuple[str, ...] = (".", " .", ",", " ", "!", " !")
"""Endings, used once at most, for tokenizers in which no sum of words meets some length."""
