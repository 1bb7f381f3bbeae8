package lease_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// service is the quota service, and what it has been asked.
type service struct {
	*quotatest.Service
	t       *testing.T
	now     func() int64
	keys    map[[16]byte]*asked
	first   *asked
	asked   int
	defined int  // definitions that it got
	old     bool // it is of a release that knows no levels
}

// asked is a key that somebody has asked for.
type asked struct {
	hash       [16]byte
	definition quota.Definition
	lastNs     int64 // when it was asked for last
}

// stream is one stream of a worker: what the worker has sent, and what the service has answered.
type stream struct {
	Asks, Answers [][]byte
	service       *quotatest.Stream
	definitions   map[uint32]quota.Definition
}

func newService(t *testing.T, now func() int64) *service {
	return &service{Service: quotatest.New(t, now), t: t, now: now, keys: map[[16]byte]*asked{}}
}

// serve has the service answer the first message of the stream.
func (s *service) serve(st *stream) {
	if st.service == nil {
		st.service, st.definitions = s.Open(s.t), map[uint32]quota.Definition{}
	}
	message := st.Asks[0]
	st.Asks = st.Asks[1:]
	var m quota.Asks
	require.NoError(s.t, m.Decode(message))
	s.defined += len(m.Definitions)
	for _, d := range m.Definitions {
		d.Windows = slices.Clone(d.Windows)
		st.definitions[d.ID] = d
	}
	for _, a := range m.Asks {
		s.asked++
		for _, p := range a.Parts {
			key := s.key(p.Key)
			key.definition, key.lastNs = st.definitions[p.Definition], s.now()
		}
	}
	if s.old {
		answers := quota.Grants{Proxies: 2}
		for _, a := range m.Asks {
			answers.Results = append(answers.Results, quota.AskResult{ID: a.ID, Result: quota.Unknown})
		}
		st.Answers = append(st.Answers, answers.Append(nil))
		return
	}
	require.NoError(s.t, st.service.Receive(message))
	s.Due()
	for answer := st.service.Next(); answer != nil; answer = st.service.Next() {
		var answers quota.Grants
		require.NoError(s.t, answers.Decode(answer))
		for _, a := range answers.Results {
			require.NotEqual(s.t, quota.Unknown, a.Result)
		}
		st.Answers = append(st.Answers, answer)
	}
}

// key is what is known of a key.
func (s *service) key(hash [16]byte) *asked {
	if s.keys[hash] == nil {
		s.keys[hash] = &asked{hash: hash}
	}
	s.first = cmp.Or(s.first, s.keys[hash])
	return s.keys[hash]
}

// inspect asks the service how a key stands.
func (s *service) inspect(key *asked) []quota.Standing {
	d := key.definition
	m := quota.Asks{
		Domain: "default", Process: 9, Definitions: []quota.Definition{d},
		Asks: []quota.Ask{{Parts: []quota.Part{{Definition: d.ID, Key: key.hash, Inspect: true}}}},
	}
	st := s.Open(s.t)
	defer st.Close()
	require.NoError(s.t, st.Receive(m.Append(nil)))
	s.Due()
	var answers quota.Grants
	require.NoError(s.t, answers.Decode(st.Next()))
	return answers.Results[0].Grants[0].Windows
}

// used is what the service has counted in the first window of all keys.
func (s *service) used() (units uint32) {
	for _, key := range s.keys {
		units += s.inspect(key)[0].Used
	}
	return units
}

// held is what the service knows to be held of all keys.
func (s *service) held() (units uint32) {
	for _, key := range s.keys {
		standings := s.inspect(key)
		units += standings[len(standings)-1].Used
	}
	return units
}
