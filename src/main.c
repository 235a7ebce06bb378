/* main.c - composition root of `berth`: the command table. */
#include <stdio.h>

int main(void)
{
    puts("berth");
    return 0;
}
