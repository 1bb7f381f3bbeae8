package decide

import "github.com/sluice-ratelimit/sluice/shared/state"

// NoteStored adds to the metrics what storing a hit has done to the record's page.
func (r *Rule) NoteStored(e *state.Entry) {
	if e.Evicted {
		r.Metrics.Evicted++
	}
	r.Metrics.WindowResets += uint64(e.Ended)
	if e.Blocked {
		r.Metrics.Blocks++
	}
}

// note adds the verdict to the rules' metrics, and to the keys that were denied.
func (v *Verdict) note() {
	for _, s := range v.Subjects {
		m := &s.Rule.Metrics
		if s.Outcome == Full {
			m.Full++
		}
		if s.isByOnUnavailable() {
			m.Unavailable++
		}
		switch n := s.named(); {
		case v.Allowed && s.Allowed:
			m.Allowed++
			n.Allowed++
		case v.Allowed:
			m.ShadowDenied++
			n.ShadowDenied++
			s.noteDenied(v.Now)
		case !s.Allowed && !s.Shadow:
			m.Denied++
			n.Denied++
			s.noteDenied(v.Now)
			if (s.Outcome == Denied || s.Outcome == Blocked) && s.Record.FromFloor {
				m.FloorDenied++
			}
		}
		if s.Outcome == Taken && s.Rule.HoldSource == nil {
			s.Rule.spikes.note(s)
		}
	}
}

// named is what counts the subject under its override's name.
func (s *Subject) named() *Named {
	if s.Override >= 0 {
		if i := s.Rule.namedBy[s.Override]; i >= 0 {
			return &s.Rule.Named[i]
		}
	}
	return &s.Rule.unnamed
}

// noteDenied counts a denial of the subject's key, also one in shadow mode.
func (s *Subject) noteDenied(now int64) {
	if r := s.Rule; r.Denials != nil {
		r.DenialWorker.Count(r.Denials, &s.Key, now)
	}
}
