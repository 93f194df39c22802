module punctual.example/client

go 1.22
