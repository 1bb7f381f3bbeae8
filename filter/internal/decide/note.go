package decide

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
		switch n := m.NamedBy(s.Override); {
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
			m.NoteUnits(s.Rule.Finder.Windows, s.Cost, s.Record.Now)
		}
	}
}

// noteDenied counts a denial of the subject's key, also one in shadow mode.
func (s *Subject) noteDenied(now int64) {
	if r := s.Rule; r.Denials != nil {
		r.DenialWorker.Count(r.Denials, &s.Key, now)
	}
}
