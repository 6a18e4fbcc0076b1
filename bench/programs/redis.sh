# redis.sh FOLDER LOAD: a redis server, and a client that sends it the commands of LOAD.
socket=$1/redis.sock
redis-server --port 0 --unixsocket "$socket" --save "" --appendonly no &
until [ -S "$socket" ]; do sleep 0.05; done
redis-cli -s "$socket" --pipe < "$2"
redis-cli -s "$socket" shutdown nosave
wait
