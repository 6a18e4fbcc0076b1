# processes.sh FILE COUNT: a shell that keeps the lines of a file in memory and starts processes.
mapfile -t lines < "$1"
total=0
for ((n = 0; n < $2; n++)); do
    line=${lines[n * 7919 % ${#lines[@]}]}
    count=$(echo "$line" | tr -d a-f | wc -c)
    total=$((total + count))
    lines[n]=${line:0:40}
done
echo "$total"
