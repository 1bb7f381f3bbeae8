package lease

import (
	"encoding/binary"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// maxSaid is how many definitions of limits that requests have said a worker keeps. Others
// are made anew, under new numbers.
const maxSaid = 256

// keyOf is what the subject's lease is found by: its key and, where requests say limits, these.
// So units that were granted under one limit are not spent under another, and no
// denial is remembered under another.
func (c *Source) keyOf(s *decide.Subject) []byte {
	if !c.rule.Subjects.IsSaid(&s.Subject) {
		return s.Key.Bytes
	}
	c.key = appendLimits(append(c.key[:0], s.Key.Bytes...), s)
	return c.key
}

// appendLimits appends the subject's limits: as many bytes for each key of a rule.
func appendLimits(b []byte, s *decide.Subject) []byte {
	for i := range s.Windows {
		b = binary.LittleEndian.AppendUint32(b, s.Windows[i].Limit)
	}
	return b
}

// definition is what the service is told of the subject's limits.
func (c *asking) definition(s *decide.Subject) *quota.Definition {
	w := c.worker
	if !c.rule.Subjects.IsSaid(&s.Subject) {
		return &w.Definitions[c.first+uint32(s.Override+1)]
	}
	c.key = appendLimits(binary.LittleEndian.AppendUint32(c.key[:0], c.first), s)
	if d := w.said[string(c.key)]; d != nil {
		return d
	}
	if len(w.said) >= maxSaid {
		clear(w.said)
	}
	d := c.rule.Subjects.Definition(&s.Subject)
	w.lastID = max(w.lastID+1, uint32(len(w.Definitions))) // also once numbers begin anew
	d.ID = w.lastID
	w.said[string(c.key)] = &d
	return &d
}

// leftSaid is how many units of the subject's key may be spent under other limits than the
// subject's, as far as this worker keeps them.
func (c *Source) leftSaid(s *decide.Subject, now int64) (units int64) {
	own := string(appendLimits(nil, s))
	rule := string(binary.LittleEndian.AppendUint32(nil, c.first))
	for said := range c.worker.said {
		limits, ofRule := strings.CutPrefix(said, rule)
		if !ofRule || limits == own {
			continue
		}
		e := &c.worker.entry
		if c.table.Read(e, append(append([]byte(nil), s.Key.Bytes...), limits...), now, c.worker.host.Monotonic()) == state.OK {
			units += int64(e.Left(e.NowNs))
		}
	}
	return units
}
