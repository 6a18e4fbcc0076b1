# big.sh FOLDER KEYS LOAD: a redis server with KEYS values of 900 bytes; a client sends the commands of LOAD.
socket=$1/redis.sock
redis-server --port 0 --unixsocket "$socket" --save "" --appendonly no --enable-debug-command yes &
until [ -S "$socket" ]; do sleep 0.05; done
redis-cli -s "$socket" debug populate "$2" key 900
redis-cli -s "$socket" --pipe < "$3"
redis-cli -s "$socket" shutdown nosave
wait
