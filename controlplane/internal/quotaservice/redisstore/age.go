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

	"github.com/redis/rueidis"
)

// serverSlots are the slots of a server that keeps values. Without a Cluster there is one server, with one slot. The
// mark of the first slot tells of the server: it loses those of all its slots at once.
type serverSlots []uint16

// Tend is swapstore.Store's. A server keeps a mark, which says since when it has its state. One that has lost its state
// has no mark, so it makes a new one. Tend reads the mark of each server's first slot. If that is another than at the
// last call, all marks that the server lacks are made: else each slot would begin when it is first used. A slot that
// moves to another server takes its mark along. A server that does not answer is as it was: swaps there fail, too, and
// say so. Only if none answers, or none says where the slots are, Tend fails.
//
// For example, a Cluster of two servers, whose slots are few here, loses the second one at 500:
//
//	at   server 1, slots 0 and 1       server 2, slots 2 and 3       seen after it       answer
//	100  none: makes 0 and 1           none: makes 2 and 3           100 100 100 100     0 old, anew
//	400  reads 0: it is as seen        reads 2: it is as seen        100 100 100 100     300 old
//	600  reads 0: it is as seen        reads 2: makes it, then 3     100 100 600 600     0 old, anew
//
// One call waits for the other. Of two at once, the slower one would put older marks in seen, and the next call would
// find the newer marks anew once more.
func (s *Store) Tend(ctx context.Context) (ageNs int64, anew bool, err error) {
	s.tending.Lock()
	defer s.tending.Unlock()
	servers, err := s.servers(ctx)
	if err != nil {
		return 0, false, ageError(err)
	}
	youngest := int64(math.MaxInt64)
	found, errs := s.readServers(ctx, servers)
	for i, said := range found {
		if errs[i] != nil {
			err = errs[i]
			continue
		}
		anew = s.see(said) || anew
		youngest = min(youngest, said.youngest)
	}
	if youngest == math.MaxInt64 { // no server has answered
		return 0, false, ageError(err)
	}
	return youngest * micro, anew, nil
}

func ageError(err error) error {
	return fmt.Errorf("read since when the quota store has its state: %w", explain(err))
}

// marks are what one server has said of its slots' marks.
type marks struct {
	slots    []uint16 // whose marks they are
	at       []int64  // by these slots
	youngest int64    // how old the youngest is, in microseconds
}

// see keeps the marks as those that were seen last, and reports whether one is another than before.
func (s *Store) see(m *marks) (anew bool) {
	for i, slot := range m.slots {
		anew = anew || s.seen[slot] != m.at[i]
		s.seen[slot] = m.at[i]
	}
	return anew
}

// readServers asks all servers at once, and returns what each has said in time, or why it has not. A late server is
// still being asked then, so readServer knows of seen only what it is given.
func (s *Store) readServers(ctx context.Context, servers []serverSlots) (found []*marks, errs []error) {
	found, errs = make([]*marks, len(servers)), make([]error, len(servers))
	var asking sync.WaitGroup
	for i, slots := range servers {
		seen := s.seen[slots[0]]
		asking.Go(func() {
			found[i], errs[i] = within(ctx, func() (*marks, error) { return s.readServer(slots, seen) })
		})
	}
	asking.Wait()
	return found, errs
}

// readServer reads the mark of a server's first slot and, if it is not the one that was seen, those of the others.
func (s *Store) readServer(slots serverSlots, seen int64) (*marks, error) {
	m := &marks{youngest: math.MaxInt64}
	err := s.readMarks(slots[:1], m)
	if err != nil || m.at[0] == seen {
		return m, err
	}
	for some := range slices.Chunk(slots[1:], maxPipeline) {
		if err := s.readMarks(some, m); err != nil {
			return m, err
		}
	}
	return m, nil
}

// readMarks reads the marks of some more slots, and makes them where there are none.
func (s *Store) readMarks(some []uint16, m *marks) error {
	commands := make([]rueidis.Completed, 0, len(some))
	for _, slot := range some {
		commands = append(commands, s.client.B().Eval().Script(markScript).Numkeys(1).Key(s.mark(slot)).Build())
	}
	for i, r := range s.client.DoMulti(context.Background(), commands...) {
		markAndAge, err := r.AsIntSlice()
		if err == nil && len(markAndAge) != 2 {
			err = errAnswer
		}
		if err != nil {
			return err
		}
		m.slots, m.at = append(m.slots, some[i]), append(m.at, markAndAge[0])
		m.youngest = min(m.youngest, markAndAge[1])
	}
	return nil
}

// sinceScript is the part of scripts that reads the mark. A script that has it has set now before, and the mark is its
// last key. It sets since to the mark. If there is none, or the clock was set back before it, the mark is now. In
// swapScript, for a swap that needs a state of 4 s at a server that has lost its own 1 s ago:
//
//	if ARGV[6] ~= '' then                                           it is 4000000, in microseconds
//	  local since = tonumber(redis.call('GET', KEYS[#KEYS]) or '')  8000000: KEYS are the value's and sluice:since
//	  if not since or since > now then … end                        no: now is 9000000
//	  if now - since < tonumber(ARGV[6]) then                       1000000 < 4000000
//	    return {3, now, there, now - since}                         Young, and 1 s old
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

const slotCount = 16384

// slot is the slot of a key. The client tells only that of a command, so this makes one, which is never sent.
func (s *Store) slot(key string) uint16 {
	command := s.client.B().Get().Key(key).Build()
	return command.Slot() & (slotCount - 1)
}

// slotTags finds a short text of each slot.
func (s *Store) slotTags() []string {
	tags := make([]string, slotCount)
	for n, left := int64(0), slotCount; left > 0; n++ {
		text := strconv.FormatInt(n, 36)
		if at := s.slot(text); tags[at] == "" {
			tags[at] = text
			left--
		}
	}
	return tags
}

// ranges asks the nodes, one after the other until one answers, which slots are at which master.
func (s *Store) ranges(ctx context.Context) ([]rueidis.RedisMessage, error) {
	return within(ctx, func() ([]rueidis.RedisMessage, error) {
		r := rueidis.NewErrorResult(errAnswer)
		for _, node := range s.client.Nodes() {
			r = node.Do(context.Background(), node.B().ClusterSlots().Build())
			if r.Error() == nil {
				break
			}
		}
		return r.ToArray()
	})
}

// servers are those that keep values.
func (s *Store) servers(ctx context.Context) ([]serverSlots, error) {
	if !s.cluster {
		return []serverSlots{{0}}, nil
	}
	ranges, err := s.ranges(ctx)
	if err != nil {
		return nil, err
	}
	byMaster := map[string]serverSlots{}
	for _, r := range ranges {
		master, slots, err := readRange(r)
		if err != nil {
			return nil, err
		}
		byMaster[master] = append(byMaster[master], slots...)
	}
	if len(byMaster) == 0 {
		return nil, errAnswer
	}
	return slices.Collect(maps.Values(byMaster)), nil
}

// readRange reads one range of slots and the ID of their master, which has it also if its address is not known.
//
//	first slot, last slot, [address, port, ID, …] of the master, those of its replicas
func readRange(r rueidis.RedisMessage) (master string, slots serverSlots, err error) {
	fields, err := r.ToArray()
	if err != nil || len(fields) < 3 {
		return "", nil, errors.Join(errAnswer, err)
	}
	first, errFirst := fields[0].AsInt64()
	last, errLast := fields[1].AsInt64()
	about, errAbout := fields[2].ToArray()
	err = errors.Join(errFirst, errLast, errAbout)
	if err != nil || len(about) < 3 || first < 0 || first > last || last >= slotCount {
		return "", nil, errors.Join(errAnswer, err)
	}
	for slot := first; slot <= last; slot++ {
		slots = append(slots, uint16(slot))
	}
	master, err = about[2].ToString()
	if err != nil {
		return "", nil, errors.Join(errAnswer, err)
	}
	return master, slots, nil
}
