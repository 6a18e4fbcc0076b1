# Counts pieces of a file's lines in a hash; prints the numbers of pieces, and of repeated pieces.
use strict;
my (%count, $more);
while (<>) {
    chomp;
    $count{$_}++ for unpack '(A6)8', $_;
}
$count{$_} > 1 and $more++ for keys %count;
print scalar(keys %count), " $more\n";
