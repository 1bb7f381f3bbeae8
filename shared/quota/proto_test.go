package quota

import (
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

// message is what the tests need of Asks and Results.
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
	var ofResults Results
	for range 300 {
		asks, grants := random[Asks](r), random[Results](r)
		samePublished(t, file.Messages().ByName("Asks"), &asks, &ofAsks)
		samePublished(t, file.Messages().ByName("Results"), &grants, &ofResults)
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
		if f.Anonymous || stays[f.Name] {
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
			"CONCURRENCY": uint64(limit.Concurrency), "BLOCK": uint64(limit.Block), "ALGORITHM_UNSPECIFIED": 0,
		},
		"Outcome": {
			"GRANTED": uint64(Granted), "DENIED": uint64(Denied), "UNAVAILABLE": uint64(Unavailable), "UNKNOWN": uint64(Unknown),
			"BUSY": uint64(Busy), "OUTCOME_UNSPECIFIED": 0,
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

// stays are fields of windows that do not travel.
var stays = map[string]bool{"Stamp": true, "FillNs": true, "Pays": true}

// fill gives a message random fields, which reach their edges.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			switch name := v.Type().Field(i).Name; {
			case name == "Jitter":
				v.Field(i).SetUint(edge(r, 1, 100))
			case !stays[name]:
				fill(r, v.Field(i))
			}
		}
	case reflect.Slice:
		n := r.IntN(4)
		switch v.Type().Elem().Name() {
		case "Part", "Window": // there is one at least
			n = 1 + r.IntN(MaxParts)
		case "Grant", "Standing":
			n = r.IntN(MaxParts + 1)
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.String:
		v.SetString([]string{"", "default", "Ämter"}[r.IntN(3)])
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int64:
		v.SetInt(int64(edge(r, 1, 1<<62, math.MaxUint64)))
	default:
		v.SetUint(edge(r, 1, 127, 128, math.MaxUint64>>(64-v.Type().Bits())))
	}
}

// edge is 0, one of the edges, or at most the last of them.
func edge(r *rand.Rand, edges ...uint64) uint64 {
	switch r.IntN(4) {
	case 0:
		return 0
	case 1:
		return edges[r.IntN(len(edges))]
	}
	return r.Uint64N(edges[len(edges)-1]) >> r.IntN(32)
}

func random[T any](r *rand.Rand) (m T) {
	fill(r, reflect.ValueOf(&m).Elem())
	return m
}
