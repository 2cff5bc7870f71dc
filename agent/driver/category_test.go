package driver_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// TestCategoryOf: an error has its category, however deep it is wrapped, and stays an error of its kind.
func TestCategoryOf(t *testing.T) {
	for _, c := range []struct {
		err       error
		want      driver.Category
		permanent bool
		kind      error
	}{
		{driver.ErrInvalid, driver.CategoryConfig, true, driver.ErrInvalid},
		{driver.ErrFinal, driver.CategoryConfig, true, driver.ErrStart},
		{driver.ErrContract, driver.CategoryConfig, true, driver.ErrContract},
		{driver.ErrStart, driver.CategoryStart, false, driver.ErrStart},
		{driver.ErrImage, driver.CategoryImage, true, driver.ErrInvalid},
		{driver.ErrImageFetch, driver.CategoryImage, false, driver.ErrStart},
		{driver.NoImage(errors.New("no alpine")), driver.CategoryImage, true, driver.ErrFinal},
	} {
		err := fmt.Errorf("task main: %w", fmt.Errorf("%w: because", c.err))
		category, permanent := driver.CategoryOf(err)
		if category != c.want || permanent != c.permanent || !errors.Is(err, c.kind) {
			t.Errorf("%v: %s, permanent %v, of its kind %v", err, category, permanent, errors.Is(err, c.kind))
		}
	}
	if text := driver.NoImage(errors.New("no alpine")).Error(); text != "no alpine" {
		t.Errorf("the text has become %q", text)
	}
}
