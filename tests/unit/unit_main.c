// SPDX-License-Identifier: Apache-2.0
#include "unit.h"

int main(void)
{
	return unit_run(NULL, NULL);
}
