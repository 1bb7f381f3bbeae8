package lease_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const perUserMany = `{"name":"r",` + byUser + `,"limits":["60000/1m"],"on_unavailable":"local"}`

// useOften has a user send so many requests that its lease has units left when the next ones are asked for.
func (w *worker) useOften(user string, s *service) {
	for range 500 {
		w.request(user)
		w.exchange(s)
	}
}

// asksAhead has a user send requests until the worker asks ahead of need, and returns the part of that ask.
func (w *worker) asksAhead(user string) quota.Part {
	asked := w.lastID
	for left := w.leased(w.t, user); left > 0 && w.lastID == asked; left-- {
		w.request(user)
	}
	require.Greater(w.t, w.lastID, asked)
	var m quota.Asks
	require.NoError(w.t, m.Decode(w.stream.Asks[len(w.stream.Asks)-1]))
	part := m.Asks[0].Parts[0]
	require.Zero(w.t, part.Cost)
	require.Positive(w.t, part.Ahead)
	return part
}

// told is how many units the worker's first ask on its stream tells that the service has not heard yet.
func (w *worker) told() uint32 {
	var m quota.Asks
	require.NoError(w.t, m.Decode(w.stream.Asks[0]))
	return m.Asks[0].Parts[0].Uncharged
}

// Units are asked for ahead of need by one worker at a time, until its ask is answered or its time is over.
func TestOneWorkerAtATimeAsksAhead(t *testing.T) {
	for _, answered := range []bool{false, true} {
		w, s := pair(t, perUserMany)
		other := newWorker(t, w.proxy, perUserMany, 2)
		w.useOften("a", s)
		w.asksAhead("a")
		other.request("a")
		require.Equal(t, 1, other.admitted())
		require.Zero(t, other.lastID)
		if answered {
			w.exchange(s)
		} else {
			w.proxy.Clock += 100 * ms
		}
		other.asksAhead("a")
	}
}

// While one ask tells what was admitted in silence, another one asks ahead of need. It tells nothing.
func TestAnAskAheadTellsNothingThatAnotherAskTells(t *testing.T) {
	w, s := pair(t, perUserMany)
	other := newWorker(t, w.proxy, perUserMany, 2)
	w.engine.Cluster.Service.Silent = true
	w.request("a")
	w.engine.Cluster.Service.Silent = false
	w.request("a") // its ask tells the unit
	other.useOften("a", s)
	require.Zero(t, other.asksAhead("a").Uncharged)
}

// An ask that leaves the queue before it is sent has told nothing, so the next ask tells what was admitted in silence.
func TestAnAskThatIsNeverSentTellsNothing(t *testing.T) {
	w, s := pair(t, perUserMany)
	w.engine.Cluster.Service.Silent = true
	w.request("a")
	w.engine.Cluster.Service.Silent = false
	w.request("b")
	left := w.request("a") // its ask is queued until the first one is answered
	w.client.Forget(left)
	w.request("a")
	s.serve(w.stream)
	w.deliver()
	require.EqualValues(t, 1, w.told())
}

// An ask whose stream has ended tells again, on the next one, what it has told.
func TestAnAskTellsAgainOnTheNextStream(t *testing.T) {
	w, _ := pair(t, perUserMany)
	w.engine.Cluster.Service.Silent = true
	w.request("a")
	w.engine.Cluster.Service.Silent = false
	w.request("a")
	w.stream = nil
	w.client.StreamEnded(w.proxy.Clock)
	w.proxy.Clock += 20 * ms
	w.tick()
	require.EqualValues(t, 1, w.told())
}

// A request that joins a queued ask has it tell what was admitted in silence since it was built.
func TestAJoinedAskTellsWhatItsLastRequestHasRead(t *testing.T) {
	w, s := pair(t, perUserMany)
	other := newWorker(t, w.proxy, perUserMany, 2)
	w.request("b")
	w.request("a") // its ask is queued
	other.engine.Cluster.Service.Silent = true
	other.request("a")
	w.request("a")
	s.serve(w.stream)
	w.deliver()
	require.EqualValues(t, 1, w.told())
}
