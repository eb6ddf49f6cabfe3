import segmenter

segmenter.train()
