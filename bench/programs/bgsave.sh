# bgsave.sh FOLDER LOAD: a redis server that may use huge pages saves a dump while keys are written.
socket=$1/redis.sock
rm -f "$1/dump.rdb"
redis-server --port 0 --unixsocket "$socket" --save "" --dir "$1" --disable-thp no &
until [ -S "$socket" ]; do sleep 0.05; done
redis-cli -s "$socket" --pipe < "$2"
redis-cli -s "$socket" bgsave
redis-cli -s "$socket" --pipe < "$2"
while redis-cli -s "$socket" info persistence | grep -q bgsave_in_progress:1; do sleep 0.05; done
redis-cli -s "$socket" shutdown nosave
wait
