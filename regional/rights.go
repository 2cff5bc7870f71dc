package regional

import (
	"github.com/nusa-scheduler/nusa/security/rights"
)

// rightsCopy is the region's copy of who may do what.
type rightsCopy struct {
	set *rights.Set
}

// newRightsCopy returns the copy of a region that has stored nothing.
func newRightsCopy() (*rightsCopy, error) {
	set, err := rights.New(nil)
	return &rightsCopy{set: set}, err
}

// get returns who may do what.
func (c *rightsCopy) get() *rights.Set { return c.set }
