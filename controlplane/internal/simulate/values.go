package simulate

import "encoding/json"

// values is a header's value or a list of them.
type values []string

func (v *values) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*v = values{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(v))
}
