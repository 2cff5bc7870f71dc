package api

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
)

// notFound returns the status NOT_FOUND for an object of a kind and a name.
func notFound(kind, name, format string, args ...any) error {
	return rpcerr.NotFound(kind, name, fmt.Sprintf(format, args...))
}
