package redisstore

import "strconv"

// mark is the name of what says since when the server of a key has its state. A script reads
// keys of one slot, and the servers of a Cluster lose their states one by one: there each slot
// has a mark.
func (s *Store) mark(key string) string {
	name := s.prefix + "since"
	if s.cluster {
		name += "{" + s.tags[s.slot(key)] + "}"
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
