package state

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
)

// TestBlocksHold: with any evictions, refunds, resets, clock steps and changes of the
// definition, no key passes while it is blocked. Where no key is evicted, a key is blocked
// exactly from its first denied hit on, for as long as the definition said then.
func TestBlocksHold(t *testing.T) {
	playAll(t, func(seed uint64) string {
		random := rand.New(rand.NewPCG(seed, 0xb10c))
		r := &blockRun{random: random, store: newMemory(), now: 100_000 * second, keys: 3 + random.IntN(4)}
		r.capacity = 1 + random.Uint32N(3)
		if random.IntN(2) == 0 {
			r.capacity = uint32(r.keys)
		}
		r.steps = random.IntN(2) == 0
		r.changes = random.IntN(2) == 0
		return r.play()
	})
}

// blockRun is a short random history of one counter with a block. An exact limiter knows when
// each key was denied, and nothing of what windows count.
type blockRun struct {
	random   *rand.Rand
	store    *memory
	now      int64 // the wall clock
	elapsed  int64 // of a clock that nobody sets
	keys     int
	capacity uint32
	steps    bool // the wall clock is set back
	changes  bool // the definition changes
	windows  [][]limit.Window
	workers  []*blockWorker
	blocked  [8]exactBlock // by key
	listed   bool          // the directory lists the block
	since    uint32        // from this epoch on
	found    string
}

// exactBlock is the block of one key.
type exactBlock struct {
	end     int64   // by the wall clock, 0 = none
	elapsed int64   // by the other one, as early as clocks that differ may end it
	lifted  []int64 // the ends of those that a policy without a block has lifted: pages may still have them
}

// blockWorker decides hits, in two phases so that others come between.
type blockWorker struct {
	variant int
	table   *Table
	behind  int64
	entry   Entry
	key     int
	read    bool  // and has found:
	elapsed int64 // by the clock that nobody sets: it may stand still before it writes
	passes  bool
	blocked bool
	blocks  bool // its table had the block's column
}

// skewNs is how far clocks of workers differ at most.
const skewNs = 3 * second

func (r *blockRun) define() {
	windows := slices.Clone([][]limit.Window{
		{aligned(2, 20*second, 0)},
		{perKey(2, 30*second)},
		{slidingLog(3, 15*second), tokenBucket(3, 1, 9*second)},
	}[r.random.IntN(3)])
	if len(r.windows) == 0 || r.random.IntN(4) > 0 {
		periods := []int64{5 * second, 40 * second, 90 * second}
		windows = append(windows, limit.NewBlock(periods[r.random.IntN(3)], r.random.IntN(3) == 0))
	}
	slices.SortFunc(windows, limit.Window.Compare)
	r.windows = append(r.windows, windows)
}

// worker makes one of the newest definition.
func (r *blockRun) worker() *blockWorker {
	newest := len(r.windows) - 1
	def := definition("x", r.capacity, r.windows[newest]...)
	return &blockWorker{
		variant: newest, table: configured(&view{memory: r.store}, "o", 1000*second+int64(newest), def),
		behind: r.random.Int64N(skewNs),
	}
}

func (r *blockRun) play() string {
	r.define()
	for range 1 + r.random.IntN(3) {
		r.workers = append(r.workers, r.worker())
	}
	for range 150 {
		r.disturb()
		w := r.workers[r.random.IntN(len(r.workers))]
		if !w.read {
			w.key, w.read = r.random.IntN(r.keys), true
			r.look(w)
		}
		if r.random.IntN(4) > 0 {
			r.finish(w)
		}
		if r.found != "" {
			return r.found
		}
	}
	return ""
}

// disturb is what happens beside the hits.
func (r *blockRun) disturb() {
	w := r.workers[r.random.IntN(len(r.workers))]
	var e Entry
	switch n := r.random.IntN(40); {
	case n < 20:
		ns := r.random.Int64N(4 * second)
		r.now += ns
		r.elapsed += ns
	case n < 21 && r.steps:
		r.now -= r.random.Int64N(200 * second)
	case n < 23 && r.changes:
		if w.variant == len(r.windows)-1 {
			r.define()
		}
		r.workers[slices.Index(r.workers, w)] = r.worker()
	case n < 24:
		_, status := w.table.Clean(new(Scratch), r.windows[w.variant], r.clockOf(w))
		r.must("clean", status)
		r.observe()
	case n < 25:
		key := r.random.IntN(r.keys)
		r.must("read", w.table.Read(&e, keyed(w.table, []byte{byte(key)}), r.clockOf(w)))
		r.observe()
		_, status := w.table.Reset(&e, true)
		r.must("reset", status)
		r.blocked[key] = exactBlock{}
	}
}

func (r *blockRun) clockOf(w *blockWorker) int64 {
	r.store.clock = func() int64 { return r.now - w.behind }
	return r.now - w.behind
}

func (r *blockRun) must(what string, status Status) {
	if status != OK {
		r.found = fmt.Sprintf("%s: status %d", what, status)
	}
}

// observe lifts all blocks once the directory does not list the block any more.
func (r *blockRun) observe() {
	d, _ := directory.Read(r.store.bytes(directoryKey))
	listed := slices.ContainsFunc(d.Tables, func(e directory.Registration) bool {
		return slices.ContainsFunc(e.Windows, func(w limit.Window) bool { return w.Algorithm == limit.Block })
	})
	if r.listed && !listed {
		for key := range r.blocked {
			b := &r.blocked[key]
			*b = exactBlock{lifted: append(b.lifted, b.end)}
		}
	}
	if !r.listed && listed {
		r.since = d.Epoch
	}
	r.listed = listed
}

// look reads the worker's key.
func (r *blockRun) look(w *blockWorker) {
	r.must("read", w.table.Read(&w.entry, keyed(w.table, []byte{byte(w.key)}), r.clockOf(w)))
	r.observe()
	w.elapsed = r.elapsed
	b := &r.blocked[w.key]
	end := w.entry.BlockEnd()
	w.passes = w.table.Check(&w.entry, 1) == w.entry.Now
	w.blocked, w.blocks = end != 0, w.table.placement.block >= 0
	roomy := r.capacity == uint32(r.keys)
	if w.table.placement.block < 0 || !roomy || r.steps {
		return
	}
	want := b.end
	if want <= w.entry.Now {
		want = 0
	}
	switch {
	case end != 0 && slices.Contains(b.lifted, end): // until some worker without a block writes the page
	case end != want:
		r.found = fmt.Sprintf("key %d: blocked until %d, should be %d, at %d", w.key, end, want, w.entry.Now)
	}
}

// finish counts the worker's hit or its denial.
func (r *blockRun) finish(w *blockWorker) {
	for w.read && r.found == "" {
		e := &w.entry
		denied := r.deniedCost(w)
		switch {
		case w.passes:
			r.finishAs(w, w.table.Commit(e, 1, true), r.admit)
		case denied > 0 || !w.blocked || r.block(w).Elastic:
			r.finishAs(w, w.table.Deny(e, denied, true), r.deny)
		default:
			w.table.Persist(e)
			w.read = false
		}
	}
}

// block is that of the worker's definition, or its last window.
func (r *blockRun) block(w *blockWorker) *limit.Window {
	windows := r.windows[w.variant]
	return &windows[len(windows)-1]
}

// deniedCost is 1 now and then: the definition counts denied hits.
func (r *blockRun) deniedCost(w *blockWorker) uint32 {
	isBucket := func(w limit.Window) bool { return w.Algorithm == limit.TokenBucket }
	if slices.ContainsFunc(r.windows[w.variant], isBucket) {
		return 0
	}
	return r.random.Uint32N(2)
}

func (r *blockRun) finishAs(w *blockWorker, status Status, done func(*blockWorker)) {
	if status == Mismatch {
		r.look(w)
		return
	}
	r.must("commit", status)
	w.read = false
	if r.found == "" {
		done(w)
	}
}

func (r *blockRun) admit(w *blockWorker) {
	b := &r.blocked[w.key]
	switch {
	case !w.blocks: // this worker has no block
	case !r.steps && w.entry.Now < b.end, r.elapsed < b.elapsed:
		r.found = fmt.Sprintf("key %d passes at %d, which is blocked until %d", w.key, w.entry.Now, b.end)
	}
	if r.random.IntN(3) == 0 {
		w.table.Refund(&w.entry, keyed(w.table, []byte{byte(w.key)}).Limits, r.clockOf(w), 1)
	}
}

func (r *blockRun) deny(w *blockWorker) {
	if !w.blocks {
		return
	}
	block := r.block(w)
	if !r.listed || w.entry.placement.epoch < r.since { // a newer policy has lifted it already
		b := &r.blocked[w.key]
		b.lifted = append(b.lifted, w.entry.BlockEnd())
		return
	}
	b := &r.blocked[w.key]
	runs := b.end > w.entry.Now
	if r.steps || r.capacity < uint32(r.keys) || len(b.lifted) > 0 { // the one that runs began at an unknown instant
		runs = !w.entry.Blocked
	}
	if !runs || block.Elastic {
		b.end = max(b.end, w.entry.Now+block.PeriodNs)
		if block.Elastic && len(b.lifted) > 0 {
			b.end = w.entry.BlockEnd()
		}
		b.elapsed = max(b.elapsed, w.elapsed+block.PeriodNs-2*skewNs-10*second)
	}
}

// A block is decided with the denial itself, and outlives everything but reset and a policy without it.
func TestABlockOutlivesItsPolicy(t *testing.T) {
	store, now := newMemory(), 1000*second
	windows := func(more ...limit.Window) Definition {
		return definition("x", 4, append([]limit.Window{aligned(2, 10*second, 0)}, more...)...)
	}
	hours := limit.NewBlock(anHour, false)
	table := configured(store, "o", 1, windows(hours))
	key := []byte("k")
	require.True(t, hit(t, table, key, now, 2))
	var e, other Entry
	require.Equal(t, OK, table.Read(&e, keyed(table, key), now))
	require.Equal(t, OK, table.Read(&other, keyed(table, key), now))
	require.Equal(t, now+10*second, table.Check(&e, 1))
	require.Equal(t, OK, table.Deny(&e, 0, true))
	require.True(t, e.Blocked)
	require.Equal(t, now+anHour, table.Check(&e, 1))
	require.Equal(t, now+anHour, table.Check(&e, 0), "whatever the cost")
	require.Equal(t, Mismatch, table.Deny(&other, 0, true), "another worker has begun it")

	shorter := configured(store, "o", 2, windows(limit.NewBlock(second, false)))
	require.Equal(t, OK, shorter.Read(&e, keyed(shorter, key), now+30*second))
	require.Equal(t, now+anHour, e.BlockEnd(), "a changed length is for later blocks")
	require.Equal(t, OK, shorter.Set(&e, AllWindows, 0, true))
	require.Equal(t, now+anHour, e.BlockEnd())
	require.Equal(t, OK, shorter.Read(&e, keyed(shorter, key), now+31*second))
	require.Equal(t, OK, shorter.Deny(&e, 0, true))
	require.False(t, e.Blocked)
	require.Equal(t, now+anHour, e.BlockEnd(), "a further denial prolongs nothing")

	without := configured(store, "o", 3, windows())
	require.True(t, hit(t, without, key, now+40*second, 1), "a policy without a block lifts it")
	again := configured(store, "o", 4, windows(hours))
	require.True(t, hit(t, again, key, now+50*second, 1))
}

// The floor keeps the latest end of the evicted, and reset keeps it away from one key.
func TestAnEvictedKeyStaysBlocked(t *testing.T) {
	now := 1000 * second
	table := newTable(1, aligned(1, second, 0), limit.NewBlock(anHour, false))
	var e Entry
	for i, key := range []string{"a", "b"} {
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte(key)), now+int64(i)*second))
		require.Equal(t, OK, table.Deny(&e, 0, true))
		require.Equal(t, now+int64(i)*second+anHour, e.BlockEnd())
	}
	for _, key := range []string{"a", "b", "c"} { // b has evicted a
		require.False(t, hit(t, table, []byte(key), now+anHour-1, 1), key)
	}
	require.Equal(t, OK, table.Read(&e, keyed(table, []byte("c")), now+2*second))
	_, status := table.Reset(&e, true)
	require.Equal(t, OK, status)
	require.True(t, hit(t, table, []byte("c"), now+3*second, 1))
	require.False(t, hit(t, table, []byte("a"), now+4*second, 1))
	require.False(t, hit(t, table, []byte("a"), now+anHour, 1), "b's ends later")
	require.True(t, hit(t, table, []byte("a"), now+anHour+second, 1))
}
