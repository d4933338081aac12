"""The calls: messages to values, the store asked, answers and refusals to messages. Whatever transport carries them."""
