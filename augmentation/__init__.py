"""Views of a sentence: what contrastive training holds to mean the same, one small class each, under one signature.

view = augmentation(sentence, random)      a Sentence in, a Sentence out; the same random state, the same view
"""
