//go:build long

package e2e

import "time"

const inFlightFor = time.Minute
