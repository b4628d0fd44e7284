"""quickstart: A Flower / PyTorch app."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Model (a small CNN with BatchNorm)"""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.norm1 = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 3 * 3, 30)
        self.fc2 = nn.Linear(30, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        return self.fc2(x)


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """Draw this partition's images: a bright bar at a height that names the class."""
    assert partition_id < num_partitions
    generator = torch.Generator().manual_seed(partition_id)
    labels = torch.randint(0, 3, (100,), generator=generator)
    images = 0.5 * torch.randn(100, 1, 8, 8, generator=generator)
    for label in range(3):
        images[labels == label, :, 2 * label + 1, :] += 1.5
    train, test = TensorDataset(images[:80], labels[:80]), TensorDataset(images[80:], labels[80:])
    return DataLoader(train, batch_size=batch_size), DataLoader(test, batch_size=batch_size)


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set."""
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    """Validate the model on the test set."""
    net.to(device)
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += F.cross_entropy(outputs, labels.to(device)).item()
            correct += (outputs.argmax(1) == labels.to(device)).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
