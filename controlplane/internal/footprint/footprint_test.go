package footprint

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

var update = flag.Bool("update", false, "write what policies take into testdata")

// read reads the rules of a policy.
func read(t *testing.T, rules string) (p *policy.Policy, text []byte, problems []policy.Problem) {
	t.Helper()
	text = []byte(`{"version":1,"rules":[` + rules + `]}`)
	doc, err := policy.ParseJSON(text)
	require.NoError(t, err)
	p, problems = policy.Read(doc)
	return p, text, problems
}

func of(t *testing.T, rules string) Footprint {
	t.Helper()
	p, _, problems := read(t, rules)
	require.Empty(t, problems)
	return Of(p)
}

// Each row of the archive has rules, and before the next one what they take.
func TestRows(t *testing.T) {
	buildtest.Archives(t, "testdata/rows.txtar", *update, func(files []txtar.File) {
		for i := 0; i < len(files); i += 2 {
			text, err := json.Marshal(of(t, string(files[i].Data)))
			require.NoError(t, err)
			files[i+1].Data = fmt.Appendf(nil, "%s\n", text)
		}
	})
}

// worker is a proxy of one worker with rules.
func worker(t *testing.T, rules string, now *int64, dial func(sim.Call, *sim.Inbox) (sim.Peer, error)) *sim.Host {
	t.Helper()
	host, err := sim.New(t.Context(), sim.Options{
		Wasm: buildtest.Wasm(t), Workers: 1, VMID: "sluice", PluginName: "sluice", Seed: 1, CacheDir: buildtest.CacheDir(),
		Now: func() int64 { return *now }, Dial: dial,
	})
	require.NoError(t, err)
	t.Cleanup(host.Close)
	require.NoError(t, host.Configure([]byte(`{"version":1,"rules":[`+rules+`]}`)))
	return host
}

// What requests make of a rule without a key stays within the footprint.
func TestARuleWithoutAKeyStaysWithinTheFootprint(t *testing.T) {
	const rules = `{"name":"r","limits":["9/1h"]}`
	now := int64(1)
	host := worker(t, rules, &now, nil)
	serve := func(i int) {
		headers := [][2]string{{":path", fmt.Sprint("/", i)}, {":authority", fmt.Sprint(i)}}
		_, err := host.Serve(0, &sim.Request{Headers: headers})
		require.NoError(t, err)
		now += 1e9
	}
	before, entries := host.Shared().Bytes(), host.Shared().Len()
	for i := range 50 {
		serve(i)
	}
	grown, bound := host.Shared().Bytes()-before, of(t, rules).Bytes
	t.Logf("%d entries of %d bytes, validate says %d", host.Shared().Len()-entries, grown, bound)
	require.Positive(t, grown)
	require.LessOrEqual(t, uint64(grown), bound)
}

// The tables of a policy's expressions stay within what validate prints of them.
func TestWorkersStayWithinTheFootprint(t *testing.T) {
	paths := map[string]string{
		"few large tables": `"~.*a.{10}%d"`, "many small ones": `"~/u%d/[0-9]+"`,
		"many instructions": `"~(?:a?){330}%d"`, "many classes": `"~\\pL{490}%d"`,
	}
	if proctest.Race { // one goroutine does all of it
		paths = map[string]string{"many small ones": paths["many small ones"]}
	}
	for name, path := range paths {
		size := 4000
		var list []string
		for i := range size {
			list = append(list, fmt.Sprintf(path, i))
		}
		p, text, problems := read(t, matching(list))
		if len(problems) > 0 { // as many as are taken
			_, err := fmt.Sscanf(problems[0].Path, "rules[0].match.paths[%d]", &size)
			require.NoError(t, err)
			list = list[:size]
			p, text, problems = read(t, matching(list))
		}
		require.Empty(t, problems)
		now := int64(1)
		host := worker(t, `{"name":"r","limits":["9/1h"]}`, &now, nil)
		before := host.Memory(0)
		require.NoError(t, host.Configure(text))
		grown, bound := host.Memory(0)-before, Of(p).ExpressionBytes
		t.Logf("%s: %d expressions, validate says %d KiB, a worker grew by %d KiB", name, len(list), bound>>10, grown>>10)
		require.LessOrEqual(t, grown, bound)
	}
}

func matching(paths []string) string {
	return `{"name":"matching","limits":["9/1h"],"match":{"paths":[` + strings.Join(paths, ",") + `]}}`
}

// Rules that deny more keys than are kept take no more than Of says, however many denials lie between
// two ticks. A worker's memory doubles when it is full, so it is measured beside heaps of several sizes.
func TestDenialBytes(t *testing.T) {
	rules := make([]string, top.MaxRules+10)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"name":"r%d","key":[{"header":"u"}],"limits":["0/1h"],"capacity":8}`, i)
	}
	takes := func(rules string, every int) uint64 {
		now := int64(1)
		host := worker(t, rules, &now, nil)
		for i := range 3 * top.MaxKeys / 2 {
			now += 1e9
			_, err := host.Serve(0, &sim.Request{Headers: [][2]string{{"u", strings.Repeat("k", 40) + strconv.Itoa(i)}}})
			require.NoError(t, err)
			if i%every == every-1 {
				require.NoError(t, host.Tick(0))
			}
		}
		return host.Memory(0)
	}
	const reportOff = `],"report_keys":"off","exempt":[`
	hashed := strings.Join(rules, ",")
	bound := of(t, hashed).DenialBytes
	require.Zero(t, of(t, hashed+reportOff).DenialBytes)
	const sizes = 10
	for _, every := range []int{16, 48} {
		var with, without uint64
		for size := range sizes {
			var paths []string // which fill the heap
			for i := range 1 + 60*size {
				paths = append(paths, fmt.Sprintf(`"~/u%d/[0-9]+"`, i))
			}
			all := hashed + "," + matching(paths)
			with += takes(all, every)
			without += takes(all+reportOff, every)
		}
		t.Logf("a tick every %d denials: of %d heaps the average is %d KiB, without the keys %d KiB, validate says %d",
			every, sizes, with/sizes>>10, without/sizes>>10, bound>>10)
		require.LessOrEqual(t, with, without+sizes*bound)
	}
}

// service is a quota service that cannot be reached until it is up.
type service struct {
	*quotatest.Service
	t      *testing.T
	up     bool
	stated int
}

type peer struct {
	*quotatest.Stream
	of *service
	in *sim.Inbox
}

func (s *service) dial(_ sim.Call, in *sim.Inbox) (sim.Peer, error) {
	if !s.up {
		return nil, errors.New("down")
	}
	return &peer{s.Open(s.t), s, in}, nil
}

func (p *peer) Send(message []byte) {
	require.NoError(p.of.t, p.Receive(message))
	for answer := p.Next(); answer != nil; answer = p.Next() {
		var m quota.Results
		require.NoError(p.of.t, m.Decode(answer))
		p.of.stated += len(m.Results)
		p.in.Message(time.Millisecond, answer)
	}
}

func (p *peer) CloseSend() {}
func (p *peer) Cancel()    { p.Close() }

// As many keys as a worker states take no more than Of says, while the service is silent and when
// all are stated at once.
func TestStatedKeysStayWithinTheFootprint(t *testing.T) {
	const rule = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["9/1h"],"settle":{}}`
	now := int64(1e18)
	s := &service{Service: quotatest.New(t, func() int64 { return now }), t: t}
	host := worker(t, rule, &now, s.dial)
	pass := func(ns int64) {
		now += ns
		s.Due()
		host.TickDue()
	}
	request := func(key int) *sim.Exchange {
		x, err := host.Start(0, &sim.Request{Headers: [][2]string{{"u", strconv.Itoa(key)}}})
		require.NoError(t, err)
		return x
	}
	for x := request(0); x.Paused(); {
		pass(1e7)
	}
	before := host.Memory(0)
	for key := range statedKeys + 100 {
		_, err := request(key).Finish()
		require.NoError(t, err)
	}
	silent := host.Memory(0) - before
	s.up = true
	pass(1e9)
	trips := 0
	for ; s.stated < statedKeys && trips < 1000; trips++ {
		pass(1e7)
	}
	grown, bound := host.Memory(0)-before, of(t, rule).StatedBytes
	t.Logf("a worker grew by %d KiB, and by %d KiB in the %d round trips in which it reported all; validate says %d",
		silent>>10, grown>>10, trips, bound>>10)
	require.LessOrEqual(t, grown, bound)
	require.LessOrEqual(t, trips, 140, "in time for a store that has lost its state")
}
