# A redis server, and one client that gives it the commands of a file.
socket=$1/redis.sock
redis-server --port 0 --unixsocket "$socket" --save "" --appendonly no &
until [ -S "$socket" ]; do sleep 0.05; done
redis-cli -s "$socket" --pipe < "$2"
redis-cli -s "$socket" shutdown nosave
wait
