//go:build slim

package slim

import _ "embed"

//go:embed nusa-supervise
var executable []byte
