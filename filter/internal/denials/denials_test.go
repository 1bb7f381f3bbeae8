package denials_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

const start int64 = 1_700_000_000_000_000_000

var secret = []byte("0123456789abcdef")

func worker(store *hosttest.Proxy, id uint64) *denials.Worker {
	return denials.NewWorker(store, id, func() []byte { return secret })
}

func newProxy() *hosttest.Proxy { return &hosttest.Proxy{Store: map[string]hosttest.Cell{}} }

func keyOf(text string) *policy.Key {
	k := &policy.Key{}
	k.Add(policy.Value{Text: text, Present: true})
	return k
}

func deny(w *denials.Worker, r *denials.Rule, key string, now int64, times int) {
	for range times {
		w.Count(r, keyOf(key), now)
	}
}

// texts are what a worker knows, each key as TEXT:DENIED+ERROR.
func texts(t *testing.T, w *denials.Worker, r *denials.Rule, now int64) (list []string, since int64) {
	t.Helper()
	known, ok := w.Collect([]*denials.Rule{r}, now)
	require.True(t, ok)
	for _, k := range known[0].Keys {
		text := string(k.Text())
		if r.Plain {
			text = ""
			parts, _ := denials.DecodeKey(k.Text())
			for _, part := range parts {
				text += *part
			}
		}
		list = append(list, fmt.Sprintf("%s:%d+%d", text, k.Denied, k.Error))
	}
	return list, known[0].SinceNs
}

func plain(name string) *denials.Rule { return &denials.Rule{Name: []byte(name), Plain: true} }

// golden is what the worker with id 1 publishes of rule r, which has denied alice twice and a
// request without a key once.
const golden = "" +
	"01" + "07" + "0100" + "0100000000000000" + "0a002a36fe9c9717" + // version, kind, 1 list, worker, start+10
	"9542007ec0f3119e" + "00002a36fe9c9717" + "00000000" + "0200" + // list: id, since start, rest, 2 keys
	"150652ec6f3606ec" + "02000000" + "00000000" + "06" + "06616c696365" + // alice: denied 2, error 0, text
	"5049d74780a3e07d" + "01000000" + "00000000" + "00" // no key: denied 1, error 0, no text

func TestMessageHasItsGoldenBytes(t *testing.T) {
	store := newProxy()
	a, r := worker(store, 1), plain("r")
	deny(a, r, "alice", start, 2)
	a.Count(r, &policy.Key{}, start)
	a.Publish(start + 10)
	require.Equal(t, golden, hex.EncodeToString(store.Store["sluice/denied/0"].Value))
	list, since := texts(t, worker(store, 2), plain("r"), start+20)
	require.Equal(t, []string{"alice:2+0", ":1+0"}, list)
	require.Equal(t, start, since)
}

func TestWorkersKnowOfEachOther(t *testing.T) {
	store := newProxy()
	a, ofA := worker(store, 1), plain("r")
	b, ofB := worker(store, 2), plain("r")
	c, ofC := worker(store, 3), plain("r")
	deny(a, ofA, "alice", start+5, 3)
	deny(b, ofB, "alice", start, 2)
	deny(b, ofB, "bob", start, 1)
	list, _ := texts(t, a, ofA, start)
	require.Equal(t, []string{"alice:3+0"}, list, "b has not published")
	b.Publish(start + 10)
	list, since := texts(t, a, ofA, start+20)
	require.Equal(t, []string{"alice:5+0", "bob:1+0"}, list)
	require.Equal(t, start, since)
	a.Publish(start + 10)
	list, _ = texts(t, c, ofC, start+20)
	require.Equal(t, []string{"alice:5+0", "bob:1+0"}, list, "a worker that has denied nothing answers too")
	list, _ = texts(t, c, plain("another"), start+20)
	require.Empty(t, list)

	writes := store.CAS
	b.Publish(start + 30)
	require.Equal(t, writes, store.CAS, "nothing has changed")

	b.Release(start + 40)
	list, _ = texts(t, a, ofA, start+50)
	require.Equal(t, []string{"alice:3+0"}, list)
	for key, cell := range store.Store {
		require.NotContains(t, string(cell.Value), "bob", key)
	}
	deny(c, ofC, "carol", start+50, 1)
	c.Publish(start + 50)
	require.Len(t, store.Store, 2, "c takes the place that b freed")
}

func TestHashesStandForKeys(t *testing.T) {
	store := newProxy()
	a, b := worker(store, 1), worker(store, 2)
	ofA, ofB := &denials.Rule{Name: []byte("r")}, &denials.Rule{Name: []byte("r")}
	deny(a, ofA, "alice", start, 1)
	deny(b, ofB, "alice", start, 1)
	b.Publish(start)
	h := hmac.New(sha256.New, secret)
	id, _ := state.StableHash(keyOf("alice").Bytes)
	h.Write(binary.LittleEndian.AppendUint64(nil, id))
	list, _ := texts(t, a, ofA, start)
	require.Equal(t, []string{fmt.Sprintf("%s:2+0", h.Sum(nil)[:denials.HashBytes])}, list)
	for _, cell := range store.Store {
		require.NotContains(t, string(cell.Value), "alice")
	}
	list, _ = texts(t, a, plain("r"), start)
	require.Empty(t, list, "a rule that shows its keys takes no hashes for them")

	c := denials.NewWorker(store, 3, func() []byte { return []byte("another") })
	list, _ = texts(t, c, &denials.Rule{Name: []byte("r")}, start)
	require.Empty(t, list, "hashes by another secret are not added up")
}

func TestNothingIsCountedBeforeThereIsASecret(t *testing.T) {
	var now []byte
	w, r := denials.NewWorker(newProxy(), 1, func() []byte { return now }), plain("r")
	_, ok := w.Collect([]*denials.Rule{r}, start)
	require.False(t, ok)
	deny(w, r, "alice", start, 1)
	now = secret
	list, _ := texts(t, w, r, start)
	require.Empty(t, list)
	deny(w, r, "alice", start, 1)
	now = nil
	list, _ = texts(t, w, r, start)
	require.Equal(t, []string{"alice:1+0"}, list, "the first secret stays")
}

func TestDenialsAreForgottenAfterTwoPeriods(t *testing.T) {
	const period = denials.PeriodNs
	for name, c := range map[string]struct {
		after int64
		want  []string
		since int64
	}{
		"in the same period":         {period - 1, []string{"alice:1+0"}, 0},
		"in the next":                {period, []string{"alice:1+0"}, 0},
		"after the next":             {2 * period, nil, 2 * period},
		"clock back beyond a period": {-period - 1, nil, -period - 1},
		"clock back by a period":     {-period, []string{"alice:1+0"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			store := newProxy()
			a, b := worker(store, 1), worker(store, 2)
			ofA, ofB := plain("r"), plain("r")
			deny(a, ofA, "alice", start, 1)
			a.Publish(start)
			now := start + c.after
			list, since := texts(t, a, ofA, now)
			require.Equal(t, c.want, list)
			require.Equal(t, start+c.since, since)
			a.Publish(now)
			list, _ = texts(t, b, ofB, now)
			require.Equal(t, c.want, list, "other workers see the same")
		})
	}
	store := newProxy()
	a, b := worker(store, 1), worker(store, 2)
	ofA, ofB := plain("r"), plain("r")
	deny(a, ofA, "alice", start, 1)
	a.Publish(start)
	list, _ := texts(t, b, ofB, start+3*period)
	require.Empty(t, list, "a stopped worker is forgotten")
	deny(b, ofB, "bob", start+3*period, 1)
	b.Publish(start + 3*period)
	require.Len(t, store.Store, 1, "b takes the place of a")
	a.Publish(start + 3*period)
	require.Len(t, store.Store, 2, "the late worker takes another place")
}

func TestMemoryIsBounded(t *testing.T) {
	store := newProxy()
	w := worker(store, 1)
	rules := make([]*denials.Rule, top.MaxRules+1)
	for i := range rules {
		rules[i] = plain(fmt.Sprint("r", i))
		for j := range 2 * top.MaxKeys {
			deny(w, rules[i], fmt.Sprint(strings.Repeat("x", 100), j), start, 1+j%3)
		}
		w.Publish(start)
		for key, cell := range store.Store {
			require.LessOrEqual(t, len(cell.Value), top.MaxShared, key)
		}
	}
	require.Len(t, store.Store, 1)
	known, ok := worker(store, 2).Collect(rules, start)
	require.True(t, ok)
	for i := range top.MaxRules {
		require.Equal(t, top.MaxText, len(known[i].Keys[0].Text())) //nolint:testifylint // the text would be printed
		require.NotZero(t, known[i].Rest)
	}
	require.Empty(t, known[top.MaxRules].Keys, "more rules than there is room for")

	for id := range uint64(denials.MaxPlaces + 10) {
		w, r := worker(store, id+10), plain("r0")
		deny(w, r, "k", start, 1)
		w.Publish(start)
		list, _ := texts(t, w, r, start)
		require.NotEmpty(t, list, "it knows what it counted itself")
	}
	require.Len(t, store.Store, denials.MaxPlaces)
}

func TestPublicationThatFailsIsRepeated(t *testing.T) {
	for _, fail := range []string{"get", "set"} {
		store := newProxy()
		w, r := worker(store, 1), plain("r")
		deny(w, r, "alice", start, 1)
		store.Fail = fail
		w.Publish(start)
		store.Fail = ""
		w.Publish(start)
		list, _ := texts(t, worker(store, 2), plain("r"), start)
		require.Equal(t, []string{"alice:1+0"}, list)
	}
	store := newProxy()
	store.Fail = "get"
	_, ok := worker(store, 1).Collect([]*denials.Rule{plain("r")}, start)
	require.False(t, ok)
}

// A worker answers with what it can read, whatever bytes are in shared data.
func TestAnyBytesOfOthersAreRead(t *testing.T) {
	store := newProxy()
	a, r := worker(store, 1), plain("r")
	for i := range 40 {
		deny(a, r, fmt.Sprint("key ", i), start, 1+i%5)
	}
	a.Publish(start)
	good := store.Store["sluice/denied/0"].Value
	random := rand.New(rand.NewPCG(1, 2))
	b := worker(store, 2)
	for i := range len(good) + 2000 {
		bytes := append([]byte(nil), good[:min(i, len(good))]...)
		if i >= len(good) {
			bytes[random.IntN(len(bytes))] ^= byte(1 + random.IntN(255))
		}
		store.Store["sluice/denied/0"] = hosttest.Cell{Value: bytes, CAS: 1}
		known, ok := b.Collect([]*denials.Rule{plain("r")}, start)
		require.True(t, ok)
		require.LessOrEqual(t, len(known[0].Keys), top.MaxKeys)
	}
}
