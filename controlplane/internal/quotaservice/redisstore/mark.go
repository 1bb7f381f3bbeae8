package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// sinceScript reads the mark, the last key: since when the server has its state, by a clock that
// was not set back since. A server without one has its state from now on.
const sinceScript = `local since = tonumber(redis.call('GET', KEYS[#KEYS]) or '')
  if not since or since > now then
    since = now
    redis.call('SET', KEYS[#KEYS], string.format('%.0f', since))
  end`

// markScript answers the mark and how old it is.
const markScript = `local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  ` + sinceScript + `
  return {since, now - since}`

// mark is the name of a slot's mark. A script reads keys of one slot, and the servers of a
// Cluster lose their states one by one: there each slot has a mark.
func (s *Store) mark(slot uint16) string {
	name := s.prefix + "since"
	if s.cluster {
		name += "{" + s.tags[slot] + "}"
	}
	return name
}

const slots = 16384

func (s *Store) slot(key string) uint16 {
	command := s.client.B().Get().Key(key).Build()
	return command.Slot() & (slots - 1)
}

// slotTags finds a short text of each slot.
func (s *Store) slotTags() []string {
	tags := make([]string, slots)
	for n, left := int64(0), slots; left > 0; n++ {
		text := strconv.FormatInt(n, 36)
		if at := s.slot(text); tags[at] == "" {
			tags[at] = text
			left--
		}
	}
	return tags
}

// Age is swapstore.Store's. A server loses the marks of all its slots at once, so that of its first slot
// tells. If it is another than at the last call, all marks that the server lacks are made: else
// each slot would begin when it is first used. A slot that moves to another server takes its mark
// along. A server that does not answer is as it was.
//
// For example, a Cluster of two servers, whose slots are few here, loses the second one at 500:
//
//	at   server 1, slots 0 and 1       server 2, slots 2 and 3       seen after it       answer
//	100  none: makes 0 and 1           none: makes 2 and 3           100 100 100 100     0 old, anew
//	400  reads 0: it is as seen        reads 2: it is as seen        100 100 100 100     300 old
//	600  reads 0: it is as seen        reads 2: makes it, then 3     100 100 600 600     0 old, anew
func (s *Store) Age(ctx context.Context) (ns int64, anew bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type found struct {
		servers [][]uint16
		err     error
	}
	f, err := within(ctx, func() (f found) {
		f.servers, f.err = s.servers()
		return f
	})
	err = errors.Join(err, f.err)
	if err != nil {
		return 0, false, ageError(err)
	}
	youngest := int64(math.MaxInt64)
	for i, l := range s.lookAtAll(ctx, f.servers) {
		if l.err != nil {
			err = l.err
			continue
		}
		anew = s.keepSeen(f.servers[i], l.marks) || anew
		youngest = min(youngest, l.youngest)
	}
	if youngest == math.MaxInt64 { // no server has answered
		return 0, false, ageError(err)
	}
	return youngest * int64(time.Microsecond), anew, nil
}

// lookAtAll looks at all servers at once, each with its slots.
func (s *Store) lookAtAll(ctx context.Context, servers [][]uint16) []look {
	looks := make([]look, len(servers))
	var all sync.WaitGroup
	for i, of := range servers {
		seen := s.seen[of[0]]
		all.Go(func() {
			l, err := within(ctx, func() look { return s.lookAt(of, seen) })
			looks[i] = l
			looks[i].err = errors.Join(l.err, err)
		})
	}
	all.Wait()
	return looks
}

// keepSeen keeps the marks of slots, the first of them or all, and reports whether one is another
// than before.
func (s *Store) keepSeen(slots []uint16, marks []int64) (changed bool) {
	for i, mark := range marks {
		slot := slots[i]
		changed = changed || s.seen[slot] != mark
		s.seen[slot] = mark
	}
	return changed
}

func ageError(err error) error {
	return fmt.Errorf("read since when the quota store has its state: %w", explain(err))
}

// look is what one look at a server's marks found.
type look struct {
	marks    []int64 // of its first slot, or of all
	youngest int64   // how old the youngest of these is, in microseconds
	err      error
}

// lookAt reads the mark of a server's first slot and, if it is not the one that was seen, those of all.
func (s *Store) lookAt(of []uint16, seen int64) look {
	l := look{youngest: math.MaxInt64}
	s.readMarks(of[:1], &l)
	if l.err != nil || l.marks[0] == seen {
		return l
	}
	for some := range slices.Chunk(of[1:], maxBatch) {
		s.readMarks(some, &l)
		if l.err != nil {
			break
		}
	}
	return l
}

// readMarks reads the marks of slots, and makes them where there are none.
func (s *Store) readMarks(of []uint16, l *look) {
	commands := make([]rueidis.Completed, 0, len(of))
	for _, slot := range of {
		commands = append(commands, s.client.B().Eval().Script(markScript).Numkeys(1).Key(s.mark(slot)).Build())
	}
	for _, r := range s.client.DoMulti(context.Background(), commands...) {
		found, err := r.AsIntSlice()
		if err == nil && len(found) != 2 {
			err = errAnswer
		}
		if err != nil {
			l.err = err
			return
		}
		l.marks = append(l.marks, found[0])
		l.youngest = min(l.youngest, found[1])
	}
}

// ranges are those of slots, as the first node says that answers.
func (s *Store) ranges() (ranges []rueidis.RedisMessage, err error) {
	for _, node := range s.client.Nodes() {
		ranges, err = node.Do(context.Background(), node.B().ClusterSlots().Build()).ToArray()
		if err == nil {
			break
		}
	}
	return ranges, err
}

// servers are those that keep values, each with its slots. Without a Cluster it is one server with
// one slot.
func (s *Store) servers() ([][]uint16, error) {
	if !s.cluster {
		return [][]uint16{{0}}, nil
	}
	ranges, err := s.ranges()
	if err != nil {
		return nil, err
	}
	byServer := map[string][]uint16{}
	for _, r := range ranges { // first slot, last slot, master, replicas
		fields, err := r.ToArray()
		if err != nil || len(fields) < 3 {
			return nil, errors.Join(errAnswer, err)
		}
		first, errFirst := fields[0].AsInt64()
		last, errLast := fields[1].AsInt64()
		master, errMaster := fields[2].ToArray()
		err = errors.Join(errFirst, errLast, errMaster)
		if err != nil || len(master) < 3 || first < 0 || last >= slots {
			return nil, errors.Join(errAnswer, err)
		}
		id, err := master[2].ToString() // its address may be said not to be known
		if err != nil {
			return nil, errors.Join(errAnswer, err)
		}
		for slot := first; slot <= last; slot++ {
			byServer[id] = append(byServer[id], uint16(slot))
		}
	}
	if len(byServer) == 0 {
		return nil, errAnswer
	}
	return slices.Collect(maps.Values(byServer)), nil
}
