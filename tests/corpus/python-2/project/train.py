import model

for epoch in xrange(3):
    print "epoch", epoch
