/* ring.pml: processes that pass numbers around a ring and swap them; all states are visited. */
#define N 5
#define LIMIT :count
byte box[N];
byte turn;

proctype worker(byte me) {
	do
	:: atomic { box[me] < LIMIT -> box[me]++ }
	:: atomic { box[me] > 0 && box[(me + 1) % N] < LIMIT -> box[me]--; box[(me + 1) % N]++ }
	:: atomic { turn == me -> turn = (me + 1) % N }
	od
}

init {
	atomic { run worker(0); run worker(1); run worker(2); run worker(3); run worker(4) }
}
