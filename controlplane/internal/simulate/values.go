package simulate

import "encoding/json"

// Values are the values of a header: in JSON one, or a list of them.
type Values []string

func (v *Values) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*v = Values{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(v))
}
