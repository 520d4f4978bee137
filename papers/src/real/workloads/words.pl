# words.pl N: a hash of lists, as an index of words has; fills, reads, sorts; prints what it saw.
# Three of four choices fall on an eighth of the words, which lie anywhere.
use strict;
use warnings;

my $count = $ARGV[0];
my $state = 1;

sub dice {
    my ($below) = @_;
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    return ($state >> 8) % $below;
}

my %places;
for my $i (0 .. $count - 1) {
    $places{"word$i"} = [map { dice(1000000) } 1 .. 1 + dice(6)];
}
my $seen = 0;
for my $turn (1 .. 2 * $count) {
    my $below = dice(4) ? int($count / 8) : $count;
    my $list = $places{"word" . (dice($below) * 7919 % $count)};
    $seen = ($seen * 31 + $list->[0] + @$list) & 0xfffffff;
    push @$list, $turn if $turn % 8 == 0;
}
my ($sum, $longest) = (0, 0);
for my $word (sort keys %places) {
    my @sorted = sort { $a <=> $b } @{$places{$word}};
    $sum = ($sum * 17 + $sorted[-1]) & 0xfffffff;
    $longest = @sorted if @sorted > $longest;
}
print "$count $seen $sum $longest\n";
