package quota

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// published compiles docs/quota.proto.
func published(t *testing.T) protoreflect.FileDescriptor {
	t.Helper()
	compiler := protocompile.Compiler{Resolver: &protocompile.SourceResolver{ImportPaths: []string{"../../docs"}}}
	files, err := compiler.Compile(t.Context(), "quota.proto")
	require.NoError(t, err)
	return files[0]
}

// message is what the tests need of Asks and Answers.
type message interface {
	Append(b []byte) []byte
	Decode(b []byte) error
}

// TestAsPublished sends random messages both ways between this package and a
// protobuf library that has read docs/quota.proto.
func TestAsPublished(t *testing.T) {
	file := published(t)
	r := rand.New(rand.NewPCG(1, 2))
	var ofAsks Asks // what it held before does not show in the next
	var ofAnswers Answers
	for range 300 {
		asks, answers := randomAsks(r), randomAnswers(r)
		samePublished(t, file.Messages().ByName("Asks"), &asks, &ofAsks)
		samePublished(t, file.Messages().ByName("Answers"), &answers, &ofAnswers)
	}
}

func samePublished(t *testing.T, d protoreflect.MessageDescriptor, m, back message) {
	t.Helper()
	ours := m.Append(nil)
	theirs := dynamicpb.NewMessage(d)
	require.NoError(t, proto.UnmarshalOptions{}.Unmarshal(ours, theirs))
	same(t, reflect.ValueOf(m).Elem(), theirs)

	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(theirs)
	require.NoError(t, err)
	require.NoError(t, back.Decode(b))
	require.Equal(t, ours, back.Append(nil), "what Decode reads")
}

// same requires that a message which a protobuf library has read has the fields of v, by their
// published names, and no others.
func same(t *testing.T, v reflect.Value, m protoreflect.Message) {
	require.Empty(t, m.GetUnknown())
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Anonymous || f.Name == "Stamp" || f.Name == "FillNs" || f.Name == "Pays" { // they do not travel
			continue
		}
		name := snake.ReplaceAllString(f.Name, "${1}_$2")
		d := m.Descriptor().Fields().ByName(protoreflect.Name(strings.ToLower(name)))
		require.NotNil(t, d, name)
		names[name] = true
		switch ours, theirs := v.FieldByIndex(f.Index), m.Get(d); {
		case d.IsList():
			require.Equal(t, ours.Len(), theirs.List().Len(), name)
			for i := range ours.Len() {
				same(t, ours.Index(i), theirs.List().Get(i).Message())
			}
		case d.Kind() == protoreflect.BytesKind:
			require.Equal(t, fmt.Sprintf("%x", ours), fmt.Sprintf("%x", theirs.Bytes()), name)
		default:
			require.Equal(t, fmt.Sprint(ours), theirs.String(), name)
		}
	}
	require.Len(t, names, m.Descriptor().Fields().Len())
}

var snake = regexp.MustCompile("([a-z])([A-Z])")

// TestServiceAsPublished: the method's path is the published one.
func TestServiceAsPublished(t *testing.T) {
	services := published(t).Services()
	require.Equal(t, 1, services.Len())
	s := services.Get(0)
	require.Equal(t, Service, string(s.FullName()))
	m := s.Methods().ByName(Method)
	require.NotNil(t, m)
	require.True(t, m.IsStreamingClient() && m.IsStreamingServer())
}

// TestEnumsAsPublished: the numbers mean the same.
func TestEnumsAsPublished(t *testing.T) {
	want := map[string]map[string]uint64{
		"Algorithm": {
			"FIXED_WINDOW": uint64(limit.FixedWindow), "FIXED_WINDOW_PER_KEY": uint64(limit.FixedWindowPerKey),
			"SLIDING_WINDOW_LOG": uint64(limit.SlidingWindowLog), "SLIDING_WINDOW_COUNTER": uint64(limit.SlidingWindowCounter),
			"TOKEN_BUCKET": uint64(limit.TokenBucket), "CALENDAR": uint64(limit.Calendar),
			"CONCURRENCY": uint64(limit.Concurrency), "ALGORITHM_UNSPECIFIED": 0,
		},
		"Result": {
			"GRANTED": uint64(Granted), "DENIED": uint64(Denied), "UNAVAILABLE": uint64(Unavailable), "UNKNOWN": uint64(Unknown),
			"BUSY": uint64(Busy), "RESULT_UNSPECIFIED": 0,
		},
	}
	enums := published(t).Enums()
	for i := range enums.Len() {
		values, got := enums.Get(i).Values(), map[string]uint64{}
		for j := range values.Len() {
			got[string(values.Get(j).Name())] = uint64(values.Get(j).Number())
		}
		require.Equal(t, want[string(enums.Get(i).Name())], got)
	}
}

// The generators reach every field's edges.

func edge(r *rand.Rand, edges ...uint64) uint64 {
	switch r.IntN(4) {
	case 0:
		return 0
	case 1:
		return edges[r.IntN(len(edges))]
	}
	return r.Uint64N(edges[len(edges)-1]) >> r.IntN(32)
}

func u32(r *rand.Rand) uint32 { return uint32(edge(r, 1, 127, 128, math.MaxUint32)) }

func i64(r *rand.Rand) int64 { return int64(edge(r, 1, 1<<62, math.MaxUint64)) }

func key(r *rand.Rand) (k [16]byte) {
	binary.LittleEndian.PutUint64(k[r.IntN(9):], edge(r, 1, math.MaxUint64))
	return k
}

func list[T any](r *rand.Rand, least, most int, item func(*rand.Rand) T) []T {
	var s []T
	for range least + r.IntN(most-least+1) {
		s = append(s, item(r))
	}
	return s
}

func randomAsks(r *rand.Rand) Asks {
	return Asks{
		Domain: []string{"", "default", "Ämter"}[r.IntN(3)], Process: edge(r, 1, math.MaxUint64),
		Definitions: list(r, 0, 2, randomDefinition), Asks: list(r, 0, 4, randomAsk),
		Returns: list(r, 0, 3, func(r *rand.Rand) Return { return Return{Grant: u32(r), Units: u32(r)} }),
	}
}

func randomDefinition(r *rand.Rand) Definition {
	return Definition{
		ID: u32(r), Counter: key(r), Windows: list(r, 1, MaxWindows, randomWindow), Lease: u32(r), CountDenied: r.IntN(2) == 0,
	}
}

func randomWindow(r *rand.Rand) limit.Window {
	return limit.Window{
		Algorithm: limit.Algorithm(edge(r, 5, math.MaxUint8)), Limit: u32(r), PeriodNs: i64(r), OffsetNs: i64(r),
		Jitter: uint8(edge(r, 1, 100)), Elastic: r.IntN(2) == 0, Burst: u32(r), Units: uint16(edge(r, math.MaxUint16)),
		Unlimited: r.IntN(2) == 0,
	}
}

func randomAsk(r *rand.Rand) Ask {
	return Ask{ID: u32(r), Parts: list(r, 1, MaxGroup, func(r *rand.Rand) Part {
		return Part{
			Definition: u32(r), Key: key(r), Cost: u32(r), Waiting: u32(r), Ahead: u32(r), Spent: u32(r), Inspect: r.IntN(2) == 0, Shadow: r.IntN(2) == 0,
			Level: Level{
				Worker: edge(r, 1, math.MaxUint64),
				Held:   u32(r), Charged: edge(r, 1, math.MaxUint64), Known: edge(r, 1, math.MaxUint64),
				Since: edge(r, 1, math.MaxUint64), Number: edge(r, 1, math.MaxUint64),
			},
		}
	})}
}

func randomAnswers(r *rand.Rand) Answers {
	return Answers{Proxies: u32(r), Answers: list(r, 0, 4, func(r *rand.Rand) Answer {
		return Answer{ID: u32(r), Result: Result(edge(r, 5, math.MaxUint8)), Grants: list(r, 0, MaxGroup, randomGrant)}
	})}
}

func randomGrant(r *rand.Rand) Grant {
	return Grant{
		Number: u32(r), Units: u32(r), ValidNs: i64(r), Denied: r.IntN(2) == 0, Leased: r.IntN(2) == 0, Failed: r.IntN(2) == 0, WaitNs: i64(r),
		Held: r.IntN(2) == 0, Stated: r.IntN(2) == 0,
		Windows: list(r, 0, MaxWindows, func(r *rand.Rand) Standing { return Standing{Used: u32(r), ResetNs: i64(r)} }),
	}
}
