class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == 40:
            raise KeyError("no such item")
        return torch.randn(8)


for x in torch.utils.data.DataLoader(Data(), 4):
    step()
