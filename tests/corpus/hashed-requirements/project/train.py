import idna

print(idna.encode('bücher').decode())
