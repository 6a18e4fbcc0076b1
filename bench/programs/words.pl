# Counts pieces of the lines of a file in a hash, then adds up what is there more than once.
use strict;
my (%count, $more);
while (<>) {
    chomp;
    $count{$_}++ for unpack '(A6)8', $_;
}
$count{$_} > 1 and $more++ for keys %count;
print scalar(keys %count), " $more\n";
